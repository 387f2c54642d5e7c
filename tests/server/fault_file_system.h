// A file system for RocksDB that remembers what was synced, fails when it is told to, and loses the
// rest in a crash, as a machine without power does.
#pragma once

#include <rocksdb/env.h>
#include <rocksdb/file_system.h>
#include <rocksdb/system_clock.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

namespace isthmus {

class FaultFileSystem final : public rocksdb::FileSystemWrapper {
 public:
  enum class Fault { kIo, kNoSpace };

  FaultFileSystem() : FileSystemWrapper(rocksdb::FileSystem::Default()) {}
  const char* Name() const override { return "FaultFileSystem"; }

  // The operation so many from now (1: the next) fails, and all after it until Mend. Operations are
  // appends and syncs of files. The append that fails writes `torn_bytes` of its bytes first.
  void FailAfter(int operations, Fault fault, size_t torn_bytes = 0) {
    std::lock_guard<std::mutex> lock(mutex_);
    left_ = operations;
    fault_ = fault;
    torn_bytes_ = torn_bytes;
  }
  void Mend() { FailAfter(-1, Fault::kIo); }
  int operations() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return operations_;
  }
  bool failed() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return left_ == 0;
  }

  // With the database closed: takes every file back to what was synced, but for `kept_bytes` of
  // what was not.
  void LosePower(uint64_t kept_bytes = 0) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [path, synced] : synced_) {
      std::error_code error;
      const uint64_t size = std::filesystem::file_size(path, error);
      if (error || size <= synced + kept_bytes) continue;
      std::filesystem::resize_file(path, synced + kept_bytes);
    }
    synced_.clear();
  }

  rocksdb::IOStatus NewWritableFile(const std::string& path, const rocksdb::FileOptions& options,
                                    std::unique_ptr<rocksdb::FSWritableFile>* file,
                                    rocksdb::IODebugContext* debug) override {
    const rocksdb::IOStatus status = FileSystemWrapper::NewWritableFile(path, options, file, debug);
    if (!status.ok()) return status;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      synced_[path] = 0;
    }
    *file = std::make_unique<File>(this, path, std::move(*file));
    return status;
  }

  rocksdb::IOStatus NewDirectory(const std::string& path, const rocksdb::IOOptions& options,
                                 std::unique_ptr<rocksdb::FSDirectory>* directory,
                                 rocksdb::IODebugContext* debug) override {
    const rocksdb::IOStatus status =
        FileSystemWrapper::NewDirectory(path, options, directory, debug);
    if (status.ok()) *directory = std::make_unique<Directory>();
    return status;
  }

  rocksdb::IOStatus RenameFile(const std::string& from, const std::string& to,
                               const rocksdb::IOOptions& options,
                               rocksdb::IODebugContext* debug) override {
    std::lock_guard<std::mutex> lock(mutex_);
    if (const auto found = synced_.find(from); found != synced_.end()) {
      synced_[to] = found->second;
      synced_.erase(from);
    }
    return FileSystemWrapper::RenameFile(from, to, options, debug);
  }

  rocksdb::IOStatus DeleteFile(const std::string& path, const rocksdb::IOOptions& options,
                               rocksdb::IODebugContext* debug) override {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      synced_.erase(path);
    }
    return FileSystemWrapper::DeleteFile(path, options, debug);
  }

 private:
  // Names are taken to be there as soon as they are made.
  class Directory final : public rocksdb::FSDirectory {
   public:
    rocksdb::IOStatus Fsync(const rocksdb::IOOptions&, rocksdb::IODebugContext*) override {
      return rocksdb::IOStatus::OK();
    }
  };

  class File final : public rocksdb::FSWritableFileOwnerWrapper {
   public:
    File(FaultFileSystem* system, std::string path, std::unique_ptr<rocksdb::FSWritableFile> file)
        : FSWritableFileOwnerWrapper(std::move(file)), system_(system), path_(std::move(path)) {}

    rocksdb::IOStatus Append(const rocksdb::Slice& data, const rocksdb::IOOptions& options,
                             rocksdb::IODebugContext* debug) override {
      const rocksdb::IOStatus status = system_->Operation();
      if (status.ok()) return target()->Append(data, options, debug);
      const rocksdb::Slice torn(data.data(), std::min(data.size(), system_->TakeTornBytes()));
      if (torn.size() > 0) target()->Append(torn, options, debug).PermitUncheckedError();
      return status;
    }
    rocksdb::IOStatus Append(const rocksdb::Slice& data, const rocksdb::IOOptions& options,
                             const rocksdb::DataVerificationInfo&,
                             rocksdb::IODebugContext* debug) override {
      return Append(data, options, debug);
    }
    rocksdb::IOStatus Sync(const rocksdb::IOOptions& options,
                           rocksdb::IODebugContext* debug) override {
      return Synced(target()->Flush(options, debug), options, debug);
    }
    rocksdb::IOStatus Fsync(const rocksdb::IOOptions& options,
                            rocksdb::IODebugContext* debug) override {
      return Synced(target()->Flush(options, debug), options, debug);
    }

   private:
    // Nothing is really synced: a test's machine keeps its power.
    rocksdb::IOStatus Synced(rocksdb::IOStatus flushed, const rocksdb::IOOptions& options,
                             rocksdb::IODebugContext* debug) {
      if (!flushed.ok()) return flushed;
      const rocksdb::IOStatus status = system_->Operation();
      if (status.ok()) system_->NoteSynced(path_, target()->GetFileSize(options, debug));
      return status;
    }

    FaultFileSystem* const system_;
    const std::string path_;
  };

  rocksdb::IOStatus Operation() {
    std::lock_guard<std::mutex> lock(mutex_);
    ++operations_;
    if (left_ > 0) --left_;
    if (left_ != 0) return rocksdb::IOStatus::OK();
    return fault_ == Fault::kNoSpace ? rocksdb::IOStatus::NoSpace("injected")
                                     : rocksdb::IOStatus::IOError("injected");
  }
  size_t TakeTornBytes() {
    std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(torn_bytes_, 0);
  }
  void NoteSynced(const std::string& path, uint64_t size) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (const auto found = synced_.find(path); found != synced_.end()) found->second = size;
  }

  mutable std::mutex mutex_;
  std::map<std::string, uint64_t> synced_;  // bytes of each file that a crash leaves
  int operations_ = 0;
  int left_ = -1;  // operations until one fails; 0: all fail, -1: none does
  Fault fault_ = Fault::kIo;
  size_t torn_bytes_ = 0;
};

// Where RocksDB finds that file system, and a clock with which it waits less: after an error in the
// background it would sleep for a second before it tries again, and before it can be closed.
class FaultEnv final : public rocksdb::EnvWrapper {
 public:
  explicit FaultEnv(const std::shared_ptr<FaultFileSystem>& system)
      : EnvWrapper(rocksdb::NewCompositeEnv(system)) {
    file_system_ = system;
    system_clock_ = std::make_shared<Clock>();
  }

 private:
  class Clock final : public rocksdb::SystemClockWrapper {
   public:
    Clock() : SystemClockWrapper(rocksdb::SystemClock::Default()) {}
    const char* Name() const override { return "FaultEnv"; }
    void SleepForMicroseconds(int micros) override {
      SystemClockWrapper::SleepForMicroseconds(std::min(micros, 2000));
    }
  };
};

}  // namespace isthmus
