// Drives the store on disk with snapshots: what a large one takes, and what commits wait for while
// it is written.
//
//   snapshots --state_dir=DIR [--bytes=B] [--count=N] [--piece_bytes=P]
//     Writes N snapshots of B bytes one after the other, as fast as they go, beside commits; then
//     lists the pieces of the last one and reads them all. Prints
//     {"bytes": …, "write_s": …, "list_s": …, "read_s": …, "rss_bytes": …, "folder_bytes_max": …,
//      "commit_alone_p50_ms": …, "commit_alone_max_ms": …, "commit_p50_ms": …, "commit_max_ms": …}
//     where rss_bytes is the most memory that the process ever had.
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "server/rocks_store.h"
#include "server/store.h"

ABSL_FLAG(std::string, state_dir, "", "state folder");
ABSL_FLAG(uint64_t, bytes, 50000000, "bytes of a snapshot");
ABSL_FLAG(uint64_t, count, 1, "snapshots");
ABSL_FLAG(uint64_t, piece_bytes, isthmus::kSnapshotPieceBytesMax, "bytes of a piece");

namespace isthmus {
namespace {

using Steady = std::chrono::steady_clock;

constexpr uint64_t kSections = 3;
constexpr size_t kUpdateBytes = 66000;  // as of the demo
constexpr int kAloneCommits = 50;
constexpr auto kBetweenCommits = std::chrono::milliseconds(20);

double SecondsSince(Steady::time_point begin) {
  return std::chrono::duration<double>(Steady::now() - begin).count();
}

double Percentile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[static_cast<size_t>(share * (values.size() - 1))];
}

// Every piece of a state; what they hold is made of round and place.
std::vector<SectionRange> Cut(uint64_t bytes, uint64_t piece_bytes) {
  const uint64_t elements = bytes / kSections / sizeof(float);
  const uint64_t step = std::max<uint64_t>(1, piece_bytes / sizeof(float));
  std::vector<SectionRange> ranges;
  for (uint32_t section = 0; section < kSections; ++section) {
    for (uint64_t begin = 0; begin < elements; begin += step) {
      ranges.push_back({section, begin, std::min(elements, begin + step)});
    }
  }
  return ranges;
}

void Fill(uint64_t round, const SectionRange& range, std::string* data) {
  data->resize(PieceBytes(range));
  for (uint64_t i = 0; i < data->size(); i += sizeof(float)) {
    const uint64_t element = range.begin + i / sizeof(float);
    const uint64_t mixed = (round * 1000003 + range.section * 8191 + element) * 0x9e3779b97f4a7c15u;
    std::memcpy(&(*data)[i], &mixed, sizeof(float));
  }
}

class Bench {
 public:
  absl::Status Run() {
    RocksStoreOptions options;
    options.dir = absl::GetFlag(FLAGS_state_dir);
    options.limits.rounds_max = 100;
    ISTHMUS_ASSIGN_OR_RETURN(store_, OpenRocksStore(options));
    ranges_ = Cut(absl::GetFlag(FLAGS_bytes), absl::GetFlag(FLAGS_piece_bytes));
    for (int i = 0; i < kAloneCommits; ++i) {
      ISTHMUS_RETURN_IF_ERROR(Commit(&alone_ms_));
      std::this_thread::sleep_for(kBetweenCommits);
    }
    std::atomic<bool> done{false};
    absl::Status committed;
    std::thread commits([&] {
      while (!done && committed.ok()) {
        committed = Commit(&beside_ms_);
        std::this_thread::sleep_for(kBetweenCommits);
      }
    });
    absl::Status written;
    const Steady::time_point begin = Steady::now();
    for (uint64_t round = 1; round <= absl::GetFlag(FLAGS_count) && written.ok(); ++round) {
      written = WriteSnapshot(round);
    }
    write_s_ = SecondsSince(begin);
    done = true;
    commits.join();
    ISTHMUS_RETURN_IF_ERROR(written);
    ISTHMUS_RETURN_IF_ERROR(committed);
    return ReadBack(absl::GetFlag(FLAGS_count));
  }

  void Print() const {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    std::printf(
        "{\"bytes\": %llu, \"write_s\": %.3f, \"list_s\": %.4f, \"read_s\": %.3f, "
        "\"rss_bytes\": %llu, \"folder_bytes_max\": %llu, \"commit_alone_p50_ms\": %.2f, "
        "\"commit_alone_max_ms\": %.2f, \"commit_p50_ms\": %.2f, \"commit_max_ms\": %.2f, "
        "\"commits\": %zu}\n",
        static_cast<unsigned long long>(bytes_), write_s_, list_s_, read_s_,
        static_cast<unsigned long long>(usage.ru_maxrss) * 1024,
        static_cast<unsigned long long>(folder_bytes_max_), Percentile(alone_ms_, 0.5),
        Percentile(alone_ms_, 1), Percentile(beside_ms_, 0.5), Percentile(beside_ms_, 1),
        beside_ms_.size());
  }

 private:
  // Called by one thread at a time.
  absl::Status Commit(std::vector<double>* times_ms) {
    auto update = std::make_shared<StoredUpdate>();
    v1::UpdateRecord& record = update->record;
    record.set_round(store_->last_round() + 1);
    record.set_sha256(absl::StrCat("record of round ", record.round()));
    record.set_pieces(1);
    record.set_payload_bytes(kUpdateBytes);
    auto event = std::make_shared<v1::WatchUpdatesResponse>();
    event->mutable_piece()->set_data(std::string(kUpdateBytes, 'u'));
    update->pieces.push_back(std::move(event));
    StoreBatch batch;
    batch.update = std::move(update);
    const Steady::time_point begin = Steady::now();
    ISTHMUS_RETURN_IF_ERROR(store_->Write(batch));
    times_ms->push_back(SecondsSince(begin) * 1e3);
    return absl::OkStatus();
  }

  absl::Status WriteSnapshot(uint64_t round) {
    StoreBatch plan;
    plan.plan.emplace();
    plan.plan->set_round(round);
    ISTHMUS_RETURN_IF_ERROR(store_->Write(plan));
    std::string data;
    bytes_ = 0;
    for (size_t i = 0; i < ranges_.size(); ++i) {
      Fill(round, ranges_[i], &data);
      ISTHMUS_RETURN_IF_ERROR(store_->WritePiece(round, ranges_[i], data));
      bytes_ += data.size();
      if (i % 16 == 0) folder_bytes_max_ = std::max(folder_bytes_max_, FolderBytes());
    }
    StoreBatch record;
    record.snapshot.emplace();
    record.snapshot->mutable_facts()->set_round(round);
    record.snapshot->set_payload_bytes(bytes_);
    return store_->Write(record);
  }

  absl::Status ReadBack(uint64_t round) {
    Steady::time_point begin = Steady::now();
    const std::vector<SectionRange> pieces = store_->Pieces(round);
    list_s_ = SecondsSince(begin);
    if (pieces != ranges_) return absl::DataLossError("other pieces are there than were written");
    begin = Steady::now();
    std::string wrote;
    for (const SectionRange& range : pieces) {
      ISTHMUS_ASSIGN_OR_RETURN(const std::string data, store_->ReadPiece(round, range));
      Fill(round, range, &wrote);
      if (data != wrote) return absl::DataLossError("a piece is not what was written");
    }
    read_s_ = SecondsSince(begin);
    return absl::OkStatus();
  }

  static uint64_t FolderBytes() {
    uint64_t bytes = 0;
    std::error_code error;
    for (const auto& file :
         std::filesystem::directory_iterator(absl::GetFlag(FLAGS_state_dir), error)) {
      const uint64_t size = std::filesystem::file_size(file.path(), error);
      if (!error) bytes += size;
    }
    return bytes;
  }

  std::unique_ptr<Store> store_;
  std::vector<SectionRange> ranges_;
  std::vector<double> alone_ms_, beside_ms_;
  uint64_t bytes_ = 0, folder_bytes_max_ = 0;
  double write_s_ = 0, list_s_ = 0, read_s_ = 0;
};

}  // namespace
}  // namespace isthmus

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  isthmus::StartLog("snapshots", "warning");
  isthmus::Bench bench;
  const absl::Status status = bench.Run();
  if (status.ok()) bench.Print();
  if (status.ok()) return 0;
  std::fprintf(stderr, "snapshots: %s\n", std::string(status.message()).c_str());
  return 1;
}
