// Server reflection: tools such as `buf curl` and grpcurl learn the services from the server.
#pragma once

namespace isthmus {

// Every gRPC server that this process starts from now on answers reflection, and describes the
// health service too.
void EnableReflection();

}  // namespace isthmus
