// A TUN device: IP packets that a network namespace sends into it come out of a file descriptor,
// and packets that are written there arrive in the namespace.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace isthmus::wan {

// Makes the device `name` in the namespace that the file `namespace_path` stands for and returns
// its descriptor, which does not block. One read or write is one packet without any header before
// it. The kernel cuts segments and fills checksums before a packet comes out, as no offload is
// asked for: one read is one packet of at most the device's MTU. The device goes away with the
// descriptor. Errors name the file or the device and say what the kernel said.
absl::StatusOr<int> OpenTun(const std::string& namespace_path, const std::string& name);

}  // namespace isthmus::wan
