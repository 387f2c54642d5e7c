// Addresses as an operator writes them: "HOST:PORT", "[IPV6]:PORT" or "unix:PATH".
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace isthmus {

struct Address {
  std::string unix_path;  // not empty: a unix socket, and nothing else is set
  std::string host;       // a name or a numeric address, without brackets
  int port = 0;           // 0: any (servers only)
};

// INVALID_ARGUMENT with a sentence: no port, an IPv6 address without brackets, a socket path that
// is too long for the system.
absl::StatusOr<Address> ParseAddress(absl::string_view text);

// The text form again, as both gRPC and ParseAddress read it.
std::string AddressText(const Address& address);

// Whether what is sent there stays on this machine: unix sockets, 127.0.0.0/8, ::1, "localhost".
bool IsLocal(const Address& address);

}  // namespace isthmus
