#include "base/whole_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace isthmus {

// The new name is on disk only when its folder is.
absl::Status SyncFolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const int file = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool synced = file >= 0 && (fsync(file) == 0 || errno == EINVAL);  // some cannot
  const int error = errno;
  if (file >= 0) close(file);
  if (synced) return absl::OkStatus();
  return absl::ErrnoToStatus(error, absl::StrCat("cannot write '", path, "'"));
}

absl::StatusOr<std::unique_ptr<WholeFile>> WholeFile::Create(const std::string& path) {
  auto file = std::unique_ptr<WholeFile>(new WholeFile(path));
  file->file_ = std::fopen(file->temporary_path_.c_str(), "wbe");
  if (file->file_ == nullptr) return file->Error(errno);
  return file;
}

WholeFile::~WholeFile() {
  if (file_ == nullptr) return;
  std::fclose(file_);
  unlink(temporary_path_.c_str());
}

absl::Status WholeFile::Error(int error) const {
  return absl::ErrnoToStatus(error, absl::StrCat("cannot write '", path_, "'"));
}

absl::Status WholeFile::Write(const void* data, size_t bytes) {
  if (bytes > 0 && std::fwrite(data, 1, bytes, file_) != bytes) return Error(errno);
  return absl::OkStatus();
}

absl::Status WholeFile::Finish() {
  // The bytes are on disk before the name points at them.
  const bool flushed = std::fflush(file_) == 0 && fsync(fileno(file_)) == 0;
  int error = errno;
  std::fclose(std::exchange(file_, nullptr));
  if (flushed && std::rename(temporary_path_.c_str(), path_.c_str()) == 0) {
    return SyncFolderOf(path_);
  }
  if (flushed) error = errno;
  unlink(temporary_path_.c_str());
  return Error(error);
}

absl::Status WriteFileWhole(const std::string& path, const std::string& text) {
  ISTHMUS_ASSIGN_OR_RETURN(const std::unique_ptr<WholeFile> file, WholeFile::Create(path));
  ISTHMUS_RETURN_IF_ERROR(file->Write(text.data(), text.size()));
  return file->Finish();
}

absl::Status CheckCanWrite(const std::string& path) {
  std::error_code ignored;  // what is not there is no folder
  if (std::filesystem::is_directory(path, ignored)) {
    return absl::ErrnoToStatus(EISDIR, absl::StrCat("cannot write '", path, "'"));
  }
  const std::string folder = std::filesystem::path(path).parent_path().string();
  if (access(folder.empty() ? "." : folder.c_str(), W_OK | X_OK) == 0) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, absl::StrCat("cannot write '", path, "'"));
}

}  // namespace isthmus
