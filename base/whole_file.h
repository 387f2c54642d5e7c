// Files that appear under their name whole and on disk, or not at all.
#pragma once

#include <cstdio>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace isthmus {

// Written beside its name first. Thread-compatible.
//
//   auto file = WholeFile::Create(path);
//   file->Write(...); ...
//   file->Finish();   // without it, or when it fails, nothing is left
class WholeFile {
 public:
  // PERMISSION_DENIED, NOT_FOUND and the like, naming the file.
  static absl::StatusOr<std::unique_ptr<WholeFile>> Create(const std::string& path);
  ~WholeFile();
  WholeFile(const WholeFile&) = delete;
  WholeFile& operator=(const WholeFile&) = delete;

  absl::Status Write(const void* data, size_t bytes);
  absl::Status Finish();

 private:
  explicit WholeFile(const std::string& path) : path_(path), temporary_path_(path + ".part") {}
  absl::Status Error(int error) const;

  const std::string path_, temporary_path_;
  std::FILE* file_ = nullptr;
};

// Writes `text` to `path`.
absl::Status WriteFileWhole(const std::string& path, const std::string& text);

// Puts the names in the folder that `path` lies in on disk. Where a file system cannot, that is
// well.
absl::Status SyncFolderOf(const std::string& path);

// Whether a file may be made at `path`: it is no folder itself, and the folder that it lies in is
// there and this process may write to it.
absl::Status CheckCanWrite(const std::string& path);

}  // namespace isthmus
