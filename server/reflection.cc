#include "server/reflection.h"

#include "google/protobuf/reflection.h"
#include "grpc/health/v1/health.pb.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"

namespace isthmus {

void EnableReflection() {
  // gRPC's built-in health service is hand-written and brings no description along.
  google::protobuf::LinkMessageReflection<grpc::health::v1::HealthCheckRequest>();
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
}

}  // namespace isthmus
