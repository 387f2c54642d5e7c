#include "tools/wan/tun.h"

#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace isthmus::wan {
namespace {

absl::Status Failed(absl::string_view what, int error) {
  return absl::ErrnoToStatus(error, absl::StrCat(what, ": ", std::strerror(error)));
}

absl::StatusOr<int> MakeDevice(const std::string& name) {
  const int tun = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  if (tun < 0) return Failed("cannot open /dev/net/tun", errno);
  ifreq request = {};
  request.ifr_flags = IFF_TUN | IFF_NO_PI;
  std::strncpy(request.ifr_name, name.c_str(), IFNAMSIZ - 1);
  if (ioctl(tun, TUNSETIFF, &request) != 0) {
    const int error = errno;
    close(tun);
    return Failed(absl::StrCat("cannot make the device ", name), error);
  }
  return tun;
}

}  // namespace

absl::StatusOr<int> OpenTun(const std::string& namespace_path, const std::string& name) {
  if (name.empty() || name.size() >= IFNAMSIZ) {
    return absl::InvalidArgumentError(absl::StrCat("device name '", name, "' has ", name.size(),
                                                   " bytes; 1 to ", IFNAMSIZ - 1, " go"));
  }
  const int home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
  if (home < 0) return Failed("cannot open /proc/self/ns/net", errno);
  const int there = open(namespace_path.c_str(), O_RDONLY | O_CLOEXEC);
  if (there < 0) {
    const int error = errno;
    close(home);
    return Failed(absl::StrCat("cannot open the namespace ", namespace_path), error);
  }
  absl::StatusOr<int> tun;
  if (setns(there, CLONE_NEWNET) != 0) {
    tun = Failed(absl::StrCat("cannot enter the namespace ", namespace_path), errno);
  } else {
    tun = MakeDevice(name);
    // Staying there would keep the namespace alive after its owner has deleted it.
    ISTHMUS_CHECK(setns(home, CLONE_NEWNET) == 0);
  }
  close(there);
  close(home);
  return tun;
}

}  // namespace isthmus::wan
