// What must be known of an address before gRPC listens there. gRPC answers "0" for every failure
// and replaces any unix socket, in use or not; here the reasons become sentences.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "transport/addresses.h"

namespace isthmus {

// The numeric addresses to listen on for a TCP address: a name may stand for several, and those
// this machine does not have (IPv6 on an IPv4-only host) are left out. With port 0 only one is
// returned, since the others could not have the same port. UNAVAILABLE, naming the address: in use,
// not of this machine, or a name that does not resolve.
absl::StatusOr<std::vector<Address>> ProbeTcp(const Address& address);

// Removes the socket file of a process that is gone.
// UNAVAILABLE: a process listens there, or the folder is missing. FAILED_PRECONDITION: the path is
// a file of another kind, which is left alone.
absl::Status PrepareUnixPath(const std::string& path);

// A socket file that this process made; removed by Remove, if it is still the same one.
class UnixSocketFile {
 public:
  // Call after gRPC has bound it. Only the owner may connect from then on.
  explicit UnixSocketFile(std::string path);
  void Remove();

 private:
  std::string path_;
  uint64_t inode_ = 0;
};

}  // namespace isthmus
