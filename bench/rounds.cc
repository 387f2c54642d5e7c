// Drives a coordinator round by round inside one process, without a network: what a round costs
// with and without a store on disk, and a state folder with as many rounds as one wants.
//
//   rounds --run_spec=FILE --rounds=N [--state_dir=DIR] [--payload_bytes=B]
//     The spec's nodes contribute to N rounds in lock step, from where the folder stands. Prints
//     {"rounds": …, "seconds": …, "p50_ms": …, "p99_ms": …, "up_bytes": …, "down_bytes": …}; the
//     times are from the last contribution to the published update. With --die it then kills
//     itself, so that the folder is as a crash leaves it.
//   rounds --probe_dir=DIR --rounds=N --payload_bytes=B
//     The disk alone: B bytes appended to a file and fdatasync, N times. Prints the same times.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/sha256.h"
#include "base/status_macros.h"
#include "isthmus/v1/coordinator.pb.h"
#include "server/coordinator.h"
#include "server/rocks_store.h"
#include "server/store.h"
#include "spec/grid.h"
#include "spec/manifest.h"
#include "spec/piece.h"
#include "spec/run_spec.h"
#include "spec/state_hash.h"

ABSL_FLAG(std::string, run_spec, "", "the run's spec");
ABSL_FLAG(std::string, state_dir, "", "state folder; empty: the store is in memory");
ABSL_FLAG(std::string, probe_dir, "", "measure the disk below this folder, and nothing else");
ABSL_FLAG(bool, die, false, "end by SIGKILL");
ABSL_FLAG(uint64_t, keep_bytes, isthmus::kStoredBytesDefault, "of updates, as the coordinator's");
ABSL_FLAG(uint64_t, rounds, 300, "rounds, or writes of the probe");
ABSL_FLAG(uint64_t, payload_bytes, 33000,
          "bytes of a contribution, about; of a write of the probe");

namespace isthmus {
namespace {

using Steady = std::chrono::steady_clock;

constexpr uint64_t kCols = 1024;
constexpr int64_t kWaitMs = 10000;
constexpr char kSecret[] = "a secret of the benchmark";

double MsSince(Steady::time_point begin) {
  return std::chrono::duration<double, std::milli>(Steady::now() - begin).count();
}

constexpr uint64_t kOneBits = 0x3ff0000000000000;  // 1.0 as float64

double Percentile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[static_cast<size_t>(share * (values.size() - 1))];
}

void PrintTimes(const std::vector<double>& times_ms, double seconds, const std::string& more) {
  std::printf("{\"rounds\": %zu, \"seconds\": %.6f, \"p50_ms\": %.4f, \"p99_ms\": %.4f%s}\n",
              times_ms.size(), seconds, Percentile(times_ms, 0.5), Percentile(times_ms, 0.99),
              more.c_str());
}

// Takes events from a watch, waiting for them.
class Reader {
 public:
  explicit Reader(std::shared_ptr<WatchQueue> queue) : queue_(std::move(queue)) {
    queue_->OnReady([this] {
      std::lock_guard<std::mutex> lock(mutex_);
      ready_ = true;
      wake_.notify_all();
    });
  }

  absl::StatusOr<WatchEvent> Next() {
    while (true) {
      WatchQueue::Taken taken = queue_->Take();
      if (taken.event != nullptr) return std::move(taken.event);
      if (taken.closed) return taken.status.ok() ? absl::CancelledError("closed") : taken.status;
      std::unique_lock<std::mutex> lock(mutex_);
      const auto wait = std::chrono::milliseconds(kWaitMs);
      if (!wake_.wait_for(lock, wait, [this] { return ready_; })) {
        return absl::DeadlineExceededError(absl::StrCat("no event came for ", kWaitMs, " ms"));
      }
      ready_ = false;
    }
  }

 private:
  std::shared_ptr<WatchQueue> queue_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool ready_ = false;
};

// One matrix, with as many rows as the contribution is to have bytes.
v1::Manifest OneMatrix(uint64_t payload_bytes, double density) {
  const double component_bytes = 5.5;  // a packed index and a float32
  const double elements = static_cast<double>(payload_bytes) / component_bytes / density;
  v1::Manifest manifest;
  v1::TensorSpec* tensor = manifest.add_tensors();
  tensor->set_name("weight");
  tensor->set_dtype(v1::DTYPE_FLOAT32);
  tensor->add_shape(std::max<uint64_t>(1, static_cast<uint64_t>(elements / kCols)));
  tensor->add_shape(kCols);
  return manifest;
}

// Every node's, in every round: components at equal distances. Content does not matter here.
std::vector<std::string> Contribution(const Grid& grid, uint32_t node) {
  PieceWriter writer(&grid, ContributionLayout(grid.codec()), kPieceBytesMax);
  for (uint64_t chunk = 0; chunk < grid.chunks(); ++chunk) {
    const ChunkPlace place = grid.Place(chunk);
    Components components;
    const uint32_t step = static_cast<uint32_t>(place.shape.elements() / place.k);
    for (uint32_t i = 0; i < place.k; ++i) {
      components.index.push_back(i * step + (step > 1 ? node % step : 0));
      components.value.push_back(1.0f + static_cast<float>(i));
    }
    writer.Append(chunk, components);
  }
  return writer.Finish();
}

// A node that has joined.
struct Node {
  std::string name;
  v1::JoinRunResponse joined;
  std::unique_ptr<Reader> reader;
  std::vector<std::string> pieces;
  std::string digest;
};

class Bench {
 public:
  absl::Status Start() {
    ISTHMUS_ASSIGN_OR_RETURN(spec_, ReadRunSpecFile(absl::GetFlag(FLAGS_run_spec)));
    CoordinatorOptions options;
    options.spec = spec_;
    options.store = MakeMemoryStore();
    if (!absl::GetFlag(FLAGS_state_dir).empty()) {
      RocksStoreOptions store;
      store.dir = absl::GetFlag(FLAGS_state_dir);
      store.limits.bytes_max = absl::GetFlag(FLAGS_keep_bytes);
      ISTHMUS_ASSIGN_OR_RETURN(options.store, OpenRocksStore(store));
    }
    store_ = options.store;
    ISTHMUS_ASSIGN_OR_RETURN(coordinator_, Coordinator::Start(std::move(options)));
    const v1::Manifest manifest =
        OneMatrix(absl::GetFlag(FLAGS_payload_bytes), spec_.codec().matrix_density());
    ISTHMUS_ASSIGN_OR_RETURN(Grid grid, Grid::Make(manifest, spec_.codec()));
    grid_ = std::make_unique<const Grid>(std::move(grid));
    fingerprint_ = Fingerprint(manifest);
    nodes_.resize(static_cast<size_t>(spec_.nodes_size()));
    for (size_t i = 0; i < nodes_.size(); ++i) {
      ISTHMUS_RETURN_IF_ERROR(Join(manifest, static_cast<int>(i)));
    }
    return absl::OkStatus();
  }

  absl::Status Run(uint64_t rounds) {
    const uint64_t first = store_->last_round() + 1;
    std::vector<double> times_ms;
    const Steady::time_point begin = Steady::now();
    for (uint64_t round = first; round < first + rounds; ++round) {
      for (Node& node : nodes_) ISTHMUS_RETURN_IF_ERROR(Submit(node, round));
      const Steady::time_point sent = Steady::now();
      for (Node& node : nodes_) ISTHMUS_RETURN_IF_ERROR(ReadUpdate(&node, round));
      times_ms.push_back(MsSince(sent));
    }
    PrintTimes(times_ms, MsSince(begin) / 1e3,
               absl::StrCat(", \"up_bytes\": ", up_bytes_, ", \"down_bytes\": ", down_bytes_));
    return absl::OkStatus();
  }

 private:
  absl::Status Join(const v1::Manifest& manifest, int number) {
    Node& node = nodes_[static_cast<size_t>(number)];
    node.name = spec_.nodes(number).name();
    node.pieces = Contribution(*grid_, static_cast<uint32_t>(number));
    std::vector<const std::string*> pointers;
    for (const std::string& piece : node.pieces) pointers.push_back(&piece);
    ISTHMUS_ASSIGN_OR_RETURN(node.digest, PayloadDigest(*grid_, pointers));
    v1::JoinRunRequest join;
    join.set_node(node.name);
    join.set_role(v1::ROLE_NODE);
    *join.mutable_manifest() = manifest;
    join.set_fingerprint(Fingerprint(manifest));
    join.set_state_sha256(Sha256Of("start state"));
    join.set_secret(kSecret);
    join.set_last_round(store_->last_round());
    ISTHMUS_ASSIGN_OR_RETURN(*join.mutable_last_update_sha256(),
                             store_->RecordSha256(join.last_round()));
    ISTHMUS_ASSIGN_OR_RETURN(node.joined, coordinator_->JoinRun(join));
    v1::WatchUpdatesRequest watch;
    watch.set_run(spec_.run());
    watch.set_node(node.name);
    watch.set_role(v1::ROLE_NODE);
    watch.set_incarnation(node.joined.incarnation());
    watch.set_last_round(join.last_round());
    watch.set_last_update_sha256(join.last_update_sha256());
    ISTHMUS_ASSIGN_OR_RETURN(auto queue, coordinator_->Watch(watch));
    node.reader = std::make_unique<Reader>(std::move(queue));
    return absl::OkStatus();
  }

  absl::Status Submit(const Node& node, uint64_t round) {
    v1::SubmitHeader header;
    header.set_run(spec_.run());
    header.set_node(node.name);
    header.set_role(v1::ROLE_NODE);
    header.set_round(round);
    header.set_base_round(round - 1);
    header.set_incarnation(node.joined.incarnation());
    header.set_attempt(node.joined.attempt());
    header.set_codec(v1::PAYLOAD_CODEC_COMPONENTS);
    header.set_steps(1);
    header.set_acknowledged_round(round - 1);
    header.add_ranges()->set_end(grid_->chunks());
    uint64_t bytes = 0;
    for (const std::string& piece : node.pieces) bytes += piece.size();
    header.set_payload_bytes(bytes);
    up_bytes_ = bytes;
    ISTHMUS_ASSIGN_OR_RETURN(auto sink, coordinator_->BeginSubmit(header));
    for (const std::string& piece : node.pieces) ISTHMUS_RETURN_IF_ERROR(sink->AddPiece(piece));
    v1::SubmitEnd end;
    end.set_digest(node.digest);
    return sink->End(end).status();
  }

  absl::Status ReadUpdate(Node* node, uint64_t round) {
    while (true) {
      ISTHMUS_ASSIGN_OR_RETURN(const WatchEvent event, node->reader->Next());
      if (event->opened().snapshot() == v1::SNAPSHOT_DUTY_UPLOAD) {
        snapshot_round_ = event->opened().round();
      }
      if (event->event_case() != v1::WatchUpdatesResponse::kUpdate) continue;
      if (event->update().round() != round) {
        return absl::InternalError(
            absl::StrCat("update ", event->update().round(), " came in place of ", round));
      }
      down_bytes_ = event->update().payload_bytes();
      if (snapshot_round_ == round) return UploadZeros(*node, event->update());
      return absl::OkStatus();
    }
  }

  // These nodes have no state; the coordinator keeps updates until it has one.
  absl::Status UploadZeros(const Node& node, const v1::UpdateRecord& update) {
    snapshot_round_ = 0;
    v1::UploadSnapshotHeader header;
    header.set_run(spec_.run());
    header.set_node(node.name);
    header.set_incarnation(node.joined.incarnation());
    v1::SnapshotFacts* facts = header.mutable_facts();
    facts->set_run(spec_.run());
    facts->set_round(update.round());
    facts->set_step(update.step());
    facts->set_update_sha256(update.sha256());
    facts->set_fingerprint(fingerprint_);
    facts->set_sections(1);
    facts->set_beta1_power_bits(kOneBits);
    facts->set_beta2_power_bits(kOneBits);
    facts->set_elements(grid_->elements());
    StateHasher hasher(*grid_, *facts);
    v1::SnapshotPiece piece;
    const uint64_t most = kSnapshotPieceBytesMax / sizeof(float);
    std::vector<v1::SnapshotPiece> pieces;
    for (uint64_t at = 0; at < grid_->elements(); at += most) {
      piece.set_begin(at);
      piece.set_data(std::string(std::min(most, grid_->elements() - at) * sizeof(float), '\0'));
      ISTHMUS_RETURN_IF_ERROR(hasher.Add(piece.data()));
      pieces.push_back(piece);
    }
    ISTHMUS_ASSIGN_OR_RETURN(*facts->mutable_state_sha256(), hasher.Finish());
    ISTHMUS_ASSIGN_OR_RETURN(const auto sink, coordinator_->BeginUpload(header));
    for (const v1::SnapshotPiece& one : pieces) ISTHMUS_RETURN_IF_ERROR(sink->AddPiece(one));
    ISTHMUS_RETURN_IF_ERROR(sink->End().status());
    // The others report the same, so that nobody is waited for.
    for (const Node& other : nodes_) {
      v1::HeartbeatRequest beat;
      beat.set_run(spec_.run());
      beat.set_node(other.name);
      beat.set_incarnation(other.joined.incarnation());
      beat.set_state_round(facts->round());
      beat.set_state_sha256(facts->state_sha256());
      ISTHMUS_RETURN_IF_ERROR(coordinator_->Heartbeat(beat).status());
    }
    return absl::OkStatus();
  }

  v1::RunSpec spec_;
  std::shared_ptr<Store> store_;
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<const Grid> grid_;
  std::string fingerprint_;
  std::vector<Node> nodes_;
  uint64_t snapshot_round_ = 0;  // after which a state is wanted; 0: none
  uint64_t up_bytes_ = 0;
  uint64_t down_bytes_ = 0;
};

absl::Status Probe(const std::string& dir, uint64_t writes, size_t bytes) {
  const std::string path = absl::StrCat(dir, "/probe");
  const int file = open(path.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
  if (file < 0) return absl::NotFoundError(absl::StrCat(path, " cannot be written"));
  const std::string block(bytes, 'x');
  std::vector<double> times_ms;
  bool good = true;
  const Steady::time_point begin = Steady::now();
  for (uint64_t i = 0; i < writes && good; ++i) {
    const Steady::time_point written = Steady::now();
    good = write(file, block.data(), block.size()) == static_cast<ssize_t>(block.size()) &&
           fdatasync(file) == 0;
    times_ms.push_back(MsSince(written));
  }
  close(file);
  unlink(path.c_str());
  if (!good) return absl::InternalError(absl::StrCat(path, " could not be written to its end"));
  PrintTimes(times_ms, MsSince(begin) / 1e3, "");
  return absl::OkStatus();
}

absl::Status Measure() {
  const uint64_t rounds = absl::GetFlag(FLAGS_rounds);
  if (const std::string dir = absl::GetFlag(FLAGS_probe_dir); !dir.empty()) {
    return Probe(dir, rounds, absl::GetFlag(FLAGS_payload_bytes));
  }
  Bench bench;
  ISTHMUS_RETURN_IF_ERROR(bench.Start());
  ISTHMUS_RETURN_IF_ERROR(bench.Run(rounds));
  std::fflush(stdout);
  if (absl::GetFlag(FLAGS_die)) kill(getpid(), SIGKILL);
  return absl::OkStatus();
}

}  // namespace
}  // namespace isthmus

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  isthmus::StartLog("rounds", "warning");
  const absl::Status status = isthmus::Measure();
  if (status.ok()) return 0;
  std::fprintf(stderr, "rounds: %s\n", std::string(status.message()).c_str());
  return 1;
}
