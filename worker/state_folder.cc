#include "worker/state_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/sha256.h"
#include "base/status_macros.h"

namespace isthmus {
namespace {

constexpr size_t kSecretBytes = 32;

absl::Status SystemError(absl::string_view what, const std::string& path) {
  return absl::ErrnoToStatus(errno, absl::StrCat("cannot ", what, " ", path));
}

absl::Status WriteAll(int fd, absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno != EINTR) return absl::ErrnoToStatus(errno, "write");
    if (written > 0) bytes.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

// The new content is there whole, or not at all.
absl::Status ReplaceFile(const std::string& path, absl::string_view bytes, bool sync) {
  const std::string temporary = absl::StrCat(path, ".new");
  const int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return SystemError("create", temporary);
  absl::Status status = WriteAll(fd, bytes);
  if (status.ok() && sync && fsync(fd) != 0) status = absl::ErrnoToStatus(errno, "fsync");
  if (close(fd) != 0 && status.ok()) status = absl::ErrnoToStatus(errno, "close");
  if (!status.ok()) {
    return absl::Status(status.code(),
                        absl::StrCat("cannot write ", temporary, ": ", status.message()));
  }
  if (rename(temporary.c_str(), path.c_str()) != 0) return SystemError("replace", path);
  return absl::OkStatus();
}

// Nothing: there is no such file.
absl::StatusOr<std::optional<std::string>> ReadFile(const std::string& path) {
  if (access(path.c_str(), F_OK) != 0 && errno == ENOENT) return std::nullopt;
  std::ifstream file(path, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (!file.is_open() || file.bad()) return SystemError("read", path);
  return bytes;
}

}  // namespace

absl::StatusOr<std::unique_ptr<StateFolder>> StateFolder::Open(const std::string& path) {
  std::unique_ptr<StateFolder> folder(new StateFolder(path));
  if (path.empty()) {
    folder->secret_ = RandomBytes(kSecretBytes);
    return folder;
  }
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    return SystemError("create the state folder", path);
  }
  ISTHMUS_RETURN_IF_ERROR(folder->Lock());
  ISTHMUS_RETURN_IF_ERROR(folder->LoadSecret());
  ISTHMUS_RETURN_IF_ERROR(folder->LoadSent());
  return folder;
}

StateFolder::~StateFolder() {
  if (lock_fd_ >= 0) close(lock_fd_);  // the lock goes with it
}

absl::Status StateFolder::Lock() {
  const std::string path = absl::StrCat(path_, "/lock");
  lock_fd_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock_fd_ < 0) return SystemError("open", path);
  if (flock(lock_fd_, LOCK_EX | LOCK_NB) == 0) return absl::OkStatus();
  if (errno != EWOULDBLOCK) return SystemError("lock", path);
  return absl::FailedPreconditionError(absl::StrCat(
      "state folder ", path_, " is in use by another process; give each agent its own"));
}

absl::Status StateFolder::LoadSecret() {
  const std::string path = absl::StrCat(path_, "/secret");
  ISTHMUS_ASSIGN_OR_RETURN(const std::optional<std::string> bytes, ReadFile(path));
  if (bytes.has_value()) {
    if (bytes->size() < kSecretBytesMin || bytes->size() > kSecretBytesMax) {
      return absl::DataLossError(absl::StrCat(path, " has ", bytes->size(), " bytes; a secret has ",
                                              kSecretBytesMin, " to ", kSecretBytesMax,
                                              ", remove the file to make a new one"));
    }
    secret_ = *bytes;
    return absl::OkStatus();
  }
  secret_ = RandomBytes(kSecretBytes);
  return ReplaceFile(path, secret_, /*sync=*/true);
}

absl::Status StateFolder::LoadSent() {
  const std::string path = absl::StrCat(path_, "/contribution");
  ISTHMUS_ASSIGN_OR_RETURN(const std::optional<std::string> text, ReadFile(path));
  if (!text.has_value()) return absl::OkStatus();
  std::istringstream lines(*text);
  do {
    SentContribution sent;
    std::string digest;
    lines >> sent.round >> sent.attempt >> digest;
    if (lines.fail() || digest.size() != 2 * kSha256Bytes) {
      return absl::DataLossError(absl::StrCat(
          path,
          " is not 'ROUND ATTEMPT DIGEST'; remove the file and start this node's trainers "
          "again"));
    }
    sent.digest = absl::HexStringToBytes(digest);
    sent_.push_back(std::move(sent));
  } while (!(lines >> std::ws).eof());
  return absl::OkStatus();
}

SentContribution StateFolder::SentFor(uint64_t round) const {
  for (const SentContribution& sent : sent_) {
    if (sent.round == round) return sent;
  }
  return SentContribution();
}

absl::Status StateFolder::SaveSent(const SentContribution& sent) {
  // What was sent again for the same round takes its place.
  sent_.erase(std::remove_if(sent_.begin(), sent_.end(),
                             [&](const SentContribution& old) { return old.round == sent.round; }),
              sent_.end());
  sent_.push_front(sent);
  if (sent_.size() > 1 + kOverlapMax) sent_.pop_back();
  if (!durable()) return absl::OkStatus();
  std::string lines;
  for (const SentContribution& one : sent_) {
    absl::StrAppend(&lines, one.round, " ", one.attempt, " ", absl::BytesToHexString(one.digest),
                    "\n");
  }
  // Not synced: the file is read only when the ranks of this machine outlived the agent, and then
  // the machine did, too.
  return ReplaceFile(absl::StrCat(path_, "/contribution"), lines, /*sync=*/false);
}

}  // namespace isthmus
