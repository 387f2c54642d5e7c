// Bytes in files without a name, mapped for reading. A write that fails is an answer; a disk that
// cannot be read any more ends the process, as one that fails under the store does.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace isthmus {

class PieceSpool {
 public:
  // Removes what an earlier process left in `dir`. `file_bytes`: of one file, at least.
  PieceSpool(std::string dir, uint64_t file_bytes);

  // The bytes as they are in a file; they stay there as long as somebody holds them.
  // RESOURCE_EXHAUSTED: it could not be written; says why and names the folder. Thread-safe.
  absl::StatusOr<std::shared_ptr<const absl::string_view>> Write(absl::string_view bytes);

 private:
  class File;

  absl::StatusOr<std::shared_ptr<File>> Open(uint64_t bytes) const;

  const std::string dir_;
  const uint64_t file_bytes_;
  std::mutex mutex_;
  std::shared_ptr<File> file_;  // that is being filled; null: none
};

}  // namespace isthmus
