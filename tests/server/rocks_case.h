// What tests of the store on disk share: a folder, copies of it, and how far they go.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/rocks_store.h"
#include "tests/server/fault_file_system.h"
#include "tests/server/store_updates.h"

namespace isthmus {

// Every place for a fault is tried where the variable ISTHMUS_FAULTS says "all", else some at
// random, which differ from run to run.
inline bool TriesAllFaults() {
  const char* faults = std::getenv("ISTHMUS_FAULTS");
  return faults != nullptr && std::string(faults) == "all";
}

// Distance to the next place, `most` at most.
inline int NextFault(std::mt19937_64* random, uint64_t most) {
  return TriesAllFaults() ? 1 : 1 + static_cast<int>((*random)() % most);
}

namespace fs = std::filesystem;

class RocksStoreTest : public ::testing::Test {
 protected:
  RocksStoreTest() {
    std::string name = absl::StrCat(::testing::TempDir(), "/rocks_XXXXXX");
    root_ = mkdtemp(name.data());
    options_.dir = root_ / "state";
    options_.write_buffer_bytes = size_t{1} << 20;
  }
  ~RocksStoreTest() override { fs::remove_all(root_); }

  std::unique_ptr<Store> Open() { return Open(options_); }
  static std::unique_ptr<Store> Open(const RocksStoreOptions& options) {
    auto store = OpenRocksStore(options);
    EXPECT_TRUE(store.ok()) << store.status();
    return store.ok() ? *std::move(store) : nullptr;
  }

  // Files go through `system` from here on; null: the machine's own.
  void Use(std::shared_ptr<FaultFileSystem> system) {
    options_.env = nullptr;
    env_ = system == nullptr ? nullptr : std::make_unique<FaultEnv>(system);
    options_.env = env_.get();
  }

  // A copy of the folder, as it lies there.
  RocksStoreOptions Copy() {
    RocksStoreOptions copy = options_;
    copy.dir = root_ / "copy";
    fs::remove_all(copy.dir);
    fs::copy(options_.dir, copy.dir);
    return copy;
  }

  static std::vector<fs::path> FilesWith(const std::string& dir, const std::string& extension) {
    std::vector<fs::path> files;
    for (const auto& file : fs::directory_iterator(dir)) {
      if (file.path().extension() == extension) files.push_back(file.path());
    }
    std::sort(files.begin(), files.end());
    return files;
  }

  // The rounds up to the last one are there as they were written.
  static void ExpectRounds(const Store& store, uint64_t last, uint64_t bytes) {
    ASSERT_EQ(store.last_round(), last);
    const auto updates = store.ReadAfter(store.first_round() - 1, uint64_t{1} << 40);
    ASSERT_TRUE(updates.ok()) << updates.status();
    ASSERT_EQ(updates->size(), last + 1 - store.first_round());
    for (const StoredUpdatePtr& update : *updates) {
      ExpectSameUpdate(*update, *TestUpdate(update->record.round(), bytes));
      EXPECT_EQ(*store.RecordSha256(update->record.round()), update->record.sha256());
    }
    if (last == 0) return;
    EXPECT_EQ(store.State().open->round(), last + 1);
  }

  // While the store is open: the log's end at `after` is cut off so that `before` to `after` bytes
  // of it are left, and `judge` is given what is opened then. Returns how many ends were tried.
  int TearLog(uint64_t before, uint64_t after,
              const std::function<void(Store* store, uint64_t size)>& judge) {
    const uint64_t seed = std::random_device()();
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937_64 random(seed);
    const fs::path log = FilesWith(options_.dir, ".log").at(0).filename();
    int tried = 0;
    for (uint64_t size = before; size <= after;
         size = size == after
                    ? after + 1
                    : std::min<uint64_t>(after, size + NextFault(&random, (after - before) / 10))) {
      SCOPED_TRACE(absl::StrCat(size - before, " of ", after - before, " bytes"));
      const RocksStoreOptions copy = Copy();
      fs::resize_file(fs::path(copy.dir) / log, size);
      const auto torn = Open(copy);
      if (torn == nullptr) return tried;
      judge(torn.get(), size);
      ++tried;
    }
    return tried;
  }
  uint64_t LogBytes() const { return fs::file_size(FilesWith(options_.dir, ".log").at(0)); }

  uint64_t FolderBytes() const {
    uint64_t bytes = 0;
    for (const auto& file : fs::directory_iterator(options_.dir)) {
      std::error_code gone;
      const uint64_t size = fs::file_size(file.path(), gone);
      if (!gone) bytes += size;
    }
    return bytes;
  }

  fs::path root_;
  RocksStoreOptions options_;

 private:
  std::unique_ptr<rocksdb::Env> env_;
};

}  // namespace isthmus
