#include "transport/listen.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"

namespace isthmus {
namespace {

// 0, or the errno of binding and listening there.
int TryToListen(const addrinfo& where) {
  const int fd = socket(where.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return errno;
  const int on = 1;
  // As gRPC does: connections of a process that just ended do not keep the port busy.
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  int error = 0;
  if (bind(fd, where.ai_addr, where.ai_addrlen) != 0 || listen(fd, 1) != 0) error = errno;
  close(fd);
  return error;
}

bool MachineLacks(int error) { return error == EADDRNOTAVAIL || error == EAFNOSUPPORT; }

absl::Status CannotListen(const std::string& address, int error) {
  if (error == EADDRINUSE) {
    return absl::UnavailableError(absl::StrCat(
        "address ", address, " is in use by another process; stop it or choose another address"));
  }
  if (MachineLacks(error)) {
    return absl::UnavailableError(
        absl::StrCat("address ", address, " is not an address of this machine"));
  }
  return absl::UnavailableError(
      absl::StrCat("cannot listen on ", address, ": ", std::strerror(error)));
}

std::string NumericHost(const addrinfo& where) {
  char text[NI_MAXHOST] = "";
  getnameinfo(where.ai_addr, where.ai_addrlen, text, sizeof(text), nullptr, 0, NI_NUMERICHOST);
  return text;
}

sockaddr_un UnixName(const std::string& path) {
  sockaddr_un name = {};
  name.sun_family = AF_UNIX;
  std::memcpy(name.sun_path, path.data(), std::min(path.size(), sizeof(name.sun_path) - 1));
  return name;
}

}  // namespace

absl::StatusOr<std::vector<Address>> ProbeTcp(const Address& address) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const std::string text = AddressText(address);
  if (const int error =
          getaddrinfo(address.host.c_str(), absl::StrCat(address.port).c_str(), &hints, &found);
      error != 0) {
    return absl::UnavailableError(
        absl::StrCat("the host of address ", text, " is not known here: ", gai_strerror(error)));
  }
  absl::Cleanup free_found = [found] { freeaddrinfo(found); };
  std::vector<Address> usable;
  int lacking = EADDRNOTAVAIL;
  for (const addrinfo* where = found; where != nullptr; where = where->ai_next) {
    if (address.port == 0 && !usable.empty()) break;
    const int error = TryToListen(*where);
    if (MachineLacks(error)) {
      lacking = error;
    } else if (error != 0) {
      return CannotListen(text, error);
    } else {
      Address numeric;
      numeric.host = NumericHost(*where);
      numeric.port = address.port;
      usable.push_back(std::move(numeric));
    }
  }
  if (usable.empty()) return CannotListen(text, lacking);
  return usable;
}

absl::Status PrepareUnixPath(const std::string& path) {
  struct stat info = {};
  if (lstat(path.c_str(), &info) != 0) {
    const int error = errno;
    const size_t slash = path.rfind('/');
    const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
    if (error == ENOENT && access(folder.c_str(), W_OK | X_OK) == 0) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat("cannot make the socket ", path, ": ",
                                               std::strerror(errno),
                                               "; its folder must exist and be writable"));
  }
  if (!S_ISSOCK(info.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " exists and is no socket; remove it or choose another path"));
  }
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) {
    return absl::UnavailableError(absl::StrCat("cannot make a socket: ", std::strerror(errno)));
  }
  absl::Cleanup close_fd = [fd] { close(fd); };
  const sockaddr_un name = UnixName(path);
  const bool refused = connect(fd, reinterpret_cast<const sockaddr*>(&name), sizeof(name)) != 0 &&
                       errno == ECONNREFUSED;
  // Any other outcome (connected, queue full, not permitted) means that somebody may be there.
  if (!refused) return CannotListen(absl::StrCat("unix:", path), EADDRINUSE);
  if (unlink(path.c_str()) != 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot remove the stale socket ", path, ": ", std::strerror(errno)));
  }
  return absl::OkStatus();
}

UnixSocketFile::UnixSocketFile(std::string path) : path_(std::move(path)) {
  struct stat info = {};
  if (lstat(path_.c_str(), &info) != 0) return;
  inode_ = info.st_ino;
  chmod(path_.c_str(), S_IRUSR | S_IWUSR);
}

void UnixSocketFile::Remove() {
  struct stat info = {};
  if (inode_ == 0 || lstat(path_.c_str(), &info) != 0 || info.st_ino != inode_) return;
  unlink(path_.c_str());
}

}  // namespace isthmus
