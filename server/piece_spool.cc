#include "server/piece_spool.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace isthmus {
namespace {

namespace fs = std::filesystem;

constexpr char kFileName[] = "pieces";
constexpr uint64_t kPageBytes = 4096;

absl::Status NotWritten(const std::string& dir, const std::string& why) {
  return absl::ResourceExhaustedError(
      absl::StrCat("cannot write the spool file in ", dir, ": ", why, "; make room on its disk"));
}

}  // namespace

class PieceSpool::File {
 public:
  File(int descriptor, char* mapped, uint64_t bytes)
      : descriptor_(descriptor), mapped_(mapped), bytes_(bytes) {}
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() {
    munmap(mapped_, bytes_);
    close(descriptor_);
  }

  // Gives the room of bytes that nobody needs back, but for parts of pages at their ends. Where the
  // file system cannot, it is free with the file.
  void Drop(absl::string_view bytes) {
    const uint64_t begin = static_cast<uint64_t>(bytes.data() - mapped_);
    const uint64_t first = (begin + kPageBytes - 1) / kPageBytes * kPageBytes;
    const uint64_t end = (begin + bytes.size()) / kPageBytes * kPageBytes;
    if (first >= end) return;
    (void)fallocate(descriptor_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                    static_cast<off_t>(first), static_cast<off_t>(end - first));
  }

  uint64_t room() const { return bytes_ - end_; }

  // 0, or what errno says. What was written of it is written over by the next.
  int Append(absl::string_view bytes, absl::string_view* written) {
    for (size_t done = 0; done < bytes.size();) {
      const ssize_t wrote = pwrite(descriptor_, bytes.data() + done, bytes.size() - done,
                                   static_cast<off_t>(end_ + done));
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote < 0) return errno;
      done += static_cast<size_t>(wrote);
    }
    *written = {mapped_ + end_, bytes.size()};
    end_ += bytes.size();
    return 0;
  }

 private:
  const int descriptor_;
  char* const mapped_;
  const uint64_t bytes_;
  uint64_t end_ = 0;
};

PieceSpool::PieceSpool(std::string dir, uint64_t file_bytes)
    : dir_(std::move(dir)), file_bytes_(file_bytes) {
  std::error_code none;  // there is no such folder
  fs::remove_all(dir_, none);
}

absl::StatusOr<std::shared_ptr<PieceSpool::File>> PieceSpool::Open(uint64_t bytes) const {
  std::error_code error;
  fs::create_directories(dir_, error);
  if (error) return NotWritten(dir_, error.message());
  const std::string path = (fs::path(dir_) / kFileName).string();
  const int descriptor = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (descriptor < 0) return NotWritten(dir_, std::strerror(errno));
  unlink(path.c_str());
  // Only its length: the room is taken as it is written.
  void* mapped = MAP_FAILED;
  if (ftruncate(descriptor, static_cast<off_t>(bytes)) == 0) {
    mapped = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, descriptor, 0);
  }
  if (mapped == MAP_FAILED) {
    const int why = errno;
    close(descriptor);
    return NotWritten(dir_, std::strerror(why));
  }
  return std::make_shared<File>(descriptor, static_cast<char*>(mapped), bytes);
}

absl::StatusOr<std::shared_ptr<const absl::string_view>> PieceSpool::Write(
    absl::string_view bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  // With pieces in it, a file that is nearly full stays; without, nobody else has it any more.
  const bool is_idle = file_ != nullptr && file_.use_count() == 1;
  if (file_ == nullptr || is_idle || file_->room() < bytes.size()) {
    file_ = nullptr;
    ISTHMUS_ASSIGN_OR_RETURN(file_, Open(std::max<uint64_t>(file_bytes_, bytes.size())));
  }
  absl::string_view written;
  if (const int why = file_->Append(bytes, &written); why != 0) {
    return NotWritten(dir_, std::strerror(why));
  }
  struct Held {
    Held(std::shared_ptr<File> in, absl::string_view written)
        : file(std::move(in)), bytes(written) {}
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;
    ~Held() { file->Drop(bytes); }
    const std::shared_ptr<File> file;
    const absl::string_view bytes;
  };
  const auto held = std::make_shared<const Held>(file_, written);
  return std::shared_ptr<const absl::string_view>(held, &held->bytes);
}

}  // namespace isthmus
