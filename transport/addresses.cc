#include "transport/addresses.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/un.h>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace isthmus {
namespace {

constexpr absl::string_view kUnixPrefix = "unix:";
// The last byte is the terminating zero.
constexpr size_t kUnixPathBytesMax = sizeof(sockaddr_un::sun_path) - 1;
constexpr int kPortMax = 65535;

absl::Status Invalid(absl::string_view text, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("address '", text, "' ", why));
}

absl::StatusOr<Address> ParseUnix(absl::string_view text) {
  Address address;
  address.unix_path = std::string(text.substr(kUnixPrefix.size()));
  if (address.unix_path.empty()) return Invalid(text, "names no path after 'unix:'");
  if (address.unix_path.size() > kUnixPathBytesMax) {
    return Invalid(
        text, absl::StrCat("has a path of ", address.unix_path.size(), " bytes; sockets allow ",
                           kUnixPathBytesMax, ": choose a shorter folder"));
  }
  for (const char c : address.unix_path) {
    // gRPC reads addresses as URIs, where these have a meaning of their own.
    if (c == '%' || c == '?' || c == '#' || static_cast<unsigned char>(c) <= ' ') {
      return Invalid(text, "has a blank or one of %?# in its path; choose a plainer name");
    }
  }
  return address;
}

}  // namespace

absl::StatusOr<Address> ParseAddress(absl::string_view text) {
  if (absl::StartsWith(text, kUnixPrefix)) return ParseUnix(text);
  Address address;
  const size_t colon = text.rfind(':');
  if (colon == absl::string_view::npos) {
    return Invalid(text, "has no port; write HOST:PORT, [IPV6]:PORT or unix:PATH");
  }
  absl::string_view host = text.substr(0, colon);
  const absl::string_view port = text.substr(colon + 1);
  const bool bracketed = absl::StartsWith(host, "[") && absl::EndsWith(host, "]");
  if (bracketed) {
    host = host.substr(1, host.size() - 2);
    in6_addr ignored;
    if (inet_pton(AF_INET6, std::string(host).c_str(), &ignored) != 1) {
      return Invalid(text, "has no IPv6 address between its brackets");
    }
  } else if (absl::StrContains(host, ":") || absl::StartsWith(text, "[")) {
    return Invalid(text,
                   "looks like IPv6; write the address in brackets and then the port, for "
                   "instance [::1]:7070");
  }
  if (host.empty()) {
    return Invalid(text, "names no host; write 0.0.0.0:PORT or [::]:PORT for all interfaces");
  }
  if (host.find_first_of(" /\\%?#@[]") != absl::string_view::npos) {
    return Invalid(
        text, absl::StrCat("has a character in its host '", host, "' that host names do not have"));
  }
  if (port.empty() || port.find_first_not_of("0123456789") != absl::string_view::npos ||
      !absl::SimpleAtoi(port, &address.port) || address.port > kPortMax) {
    return Invalid(text, absl::StrCat("has the port '", port, "'; a port is 0 to ", kPortMax));
  }
  address.host = std::string(host);
  return address;
}

std::string AddressText(const Address& address) {
  if (!address.unix_path.empty()) return absl::StrCat(kUnixPrefix, address.unix_path);
  if (absl::StrContains(address.host, ":")) {
    return absl::StrCat("[", address.host, "]:", address.port);
  }
  return absl::StrCat(address.host, ":", address.port);
}

bool IsLocal(const Address& address) {
  if (!address.unix_path.empty() || address.host == "localhost") return true;
  in_addr v4;
  if (inet_pton(AF_INET, address.host.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  in6_addr v6;
  return inet_pton(AF_INET6, address.host.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

}  // namespace isthmus
