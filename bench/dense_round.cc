// One node of a run whose rounds hold every value of a model, driven from outside so that several
// nodes begin a round together and other programs' rounds come between:
//
//   dense_round --run_spec=FILE --node=NAME --coordinator=HOST:PORT --elements=N
//
// It joins with one matrix of N values, prints "ready", and for each line on standard input does a
// round with the coordinator: writes its values in the run's format, sends them, waits for the
// update and reads all of its values. It answers "ms=… encode_ms=… wait_ms=… decode_ms=…
// up_bytes=… down_bytes=…". The values of every round are the same, so that the first update is
// compared with what the nodes of the spec must have made of them. There is no agent between.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <iostream>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/sha256.h"
#include "base/status_macros.h"
#include "spec/grid.h"
#include "spec/manifest.h"
#include "spec/piece.h"
#include "spec/run_spec.h"
#include "transport/session.h"
#include "worker/contribution_digest.h"

ABSL_FLAG(std::string, run_spec, "", "the run's spec");
ABSL_FLAG(std::string, node, "", "name of this node in it");
ABSL_FLAG(std::string, coordinator, "", "HOST:PORT");
ABSL_FLAG(uint64_t, elements, 10'000'000, "values, a multiple of 1000");

namespace isthmus {
namespace {

using Steady = std::chrono::steady_clock;

constexpr uint64_t kCols = 1000;
constexpr auto kWait = std::chrono::seconds(60);
// Sums and the mean of two are rounded; formats with a scale are compared in another way.
constexpr float kExactBound = 1e-6f;

double MsSince(Steady::time_point begin) {
  return std::chrono::duration<double, std::milli>(Steady::now() - begin).count();
}

v1::Manifest OneMatrix(uint64_t elements) {
  v1::Manifest manifest;
  v1::TensorSpec* tensor = manifest.add_tensors();
  tensor->set_name("weight");
  tensor->set_dtype(v1::DTYPE_FLOAT32);
  tensor->add_shape(elements / kCols);
  tensor->add_shape(kCols);
  return manifest;
}

// Value of an element at the node with this number: between -1 and 1, without a pattern that a
// format could profit from.
float ValueOf(uint64_t element, int node) {
  uint64_t bits = (element + 1) * 0x9e3779b97f4a7c15u + static_cast<uint64_t>(node) * 0x85ebca6bu;
  bits = (bits ^ (bits >> 31)) * 0xbf58476d1ce4e5b9u;
  return static_cast<float>(static_cast<int64_t>(bits) >> 40) / 8388608.0f;
}

std::vector<float> ValuesOf(uint64_t elements, int node) {
  std::vector<float> values(elements);
  for (uint64_t i = 0; i < elements; ++i) values[i] = ValueOf(i, node);
  return values;
}

// Keeps what the session tells.
class Listener : public SessionListener {
 public:
  void OnJoined(const v1::JoinRunResponse& joined) override {
    Set([&] { attempt_ = joined.attempt(); });
  }
  void OnOpened(const v1::RoundOpened& opened) override {
    Set([&] { opened_ = opened; });
  }
  void OnUpdate(std::shared_ptr<const CommittedUpdate> update) override {
    Set([&] { update_ = std::move(update); });
  }
  void OnFinished(uint64_t last_round) override {
    Set([&] { ended_ = absl::OutOfRangeError(absl::StrCat("finished after round ", last_round)); });
  }
  void OnEnded(const absl::Status& status) override {
    Set([&] { ended_ = status; });
  }
  void OnWaiting(const std::string&) override {}

  // The open round behind `round`, and the attempt to send under.
  absl::StatusOr<v1::RoundOpened> OpenedAfter(uint64_t round, uint64_t* attempt) {
    ISTHMUS_RETURN_IF_ERROR(Wait([&] { return opened_.round() > round; }));
    *attempt = attempt_;
    return opened_;
  }
  absl::StatusOr<std::shared_ptr<const CommittedUpdate>> UpdateOf(uint64_t round) {
    ISTHMUS_RETURN_IF_ERROR(
        Wait([&] { return update_ != nullptr && update_->record.round() == round; }));
    return update_;
  }
  void Refuse(const absl::Status& status) {
    Set([&] { ended_ = status; });
  }

 private:
  template <typename Change>
  void Set(Change change) {
    std::lock_guard<std::mutex> lock(mutex_);
    change();
    changed_.notify_all();
  }
  // Returns with what it waited for in place; the caller reads it on the only thread that waits.
  template <typename Condition>
  absl::Status Wait(Condition condition) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (!changed_.wait_for(lock, kWait, [&] { return condition() || !ended_.ok(); })) {
      return absl::DeadlineExceededError("nothing came from the coordinator for 60 s");
    }
    return condition() ? absl::OkStatus() : ended_;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t attempt_ = 0;
  v1::RoundOpened opened_;
  std::shared_ptr<const CommittedUpdate> update_;
  absl::Status ended_;
};

class Node {
 public:
  absl::Status Start() {
    ISTHMUS_ASSIGN_OR_RETURN(spec_, ReadRunSpecFile(absl::GetFlag(FLAGS_run_spec)));
    number_ = NodeIndex(spec_, absl::GetFlag(FLAGS_node));
    if (number_ < 0) return absl::InvalidArgumentError("--node names no node of the spec");
    const v1::Manifest manifest = OneMatrix(absl::GetFlag(FLAGS_elements));
    ISTHMUS_ASSIGN_OR_RETURN(Grid grid, Grid::Make(manifest, spec_.codec()));
    grid_ = std::make_unique<const Grid>(std::move(grid));
    values_ = ValuesOf(grid_->elements(), number_);
    merged_.resize(values_.size());
    SessionOptions options;
    options.client.address = absl::GetFlag(FLAGS_coordinator);
    options.join.set_run(spec_.run());
    options.join.set_node(absl::GetFlag(FLAGS_node));
    options.join.set_role(v1::ROLE_NODE);
    *options.join.mutable_manifest() = manifest;
    options.join.set_fingerprint(Fingerprint(manifest));
    options.join.set_state_sha256(Sha256Of("start state"));
    options.join.set_secret(absl::StrCat("the secret of node ", options.join.node()));
    options.listener = &listener_;
    ISTHMUS_ASSIGN_OR_RETURN(session_, Session::Start(options));
    return listener_.OpenedAfter(0, &attempt_).status();
  }

  absl::StatusOr<std::string> Round() {
    ISTHMUS_ASSIGN_OR_RETURN(const v1::RoundOpened opened,
                             listener_.OpenedAfter(round_, &attempt_));
    const Steady::time_point begin = Steady::now();
    ISTHMUS_ASSIGN_OR_RETURN(const auto submission, Encode(opened));
    const double encode_ms = MsSince(begin);
    session_->Submit(submission, [this](const absl::Status& status) { listener_.Refuse(status); });
    ISTHMUS_ASSIGN_OR_RETURN(const auto update, listener_.UpdateOf(opened.round()));
    const double arrived_ms = MsSince(begin);
    ISTHMUS_RETURN_IF_ERROR(Decode(*update));
    const double ms = MsSince(begin);
    session_->Acknowledge(update->record.round(), update->record.sha256());
    if (round_ == 0) ISTHMUS_RETURN_IF_ERROR(Compare());
    round_ = opened.round();
    uint64_t up_bytes = 0;
    for (const std::string& piece : submission->pieces) up_bytes += piece.size();
    return absl::StrCat("ms=", ms, " encode_ms=", encode_ms, " wait_ms=", arrived_ms - encode_ms,
                        " decode_ms=", ms - arrived_ms, " up_bytes=", up_bytes,
                        " down_bytes=", update->record.payload_bytes());
  }

 private:
  absl::StatusOr<std::shared_ptr<const Submission>> Encode(const v1::RoundOpened& opened) {
    const v1::PayloadCodec layout = ContributionLayout(spec_.codec());
    PieceWriter writer(grid_.get(), layout, kPieceBytesMax);
    for (uint64_t chunk = 0; chunk < grid_->chunks(); ++chunk) {
      const ChunkPlace place = grid_->Place(chunk);
      if (layout == v1::PAYLOAD_CODEC_NUMBERS) {
        writer.AppendValues(
            chunk, absl::MakeConstSpan(values_).subspan(place.first_element, place.shape.cols));
      } else {
        Gather(place);
        writer.Append(chunk, components_);
      }
    }
    auto submission = std::make_shared<Submission>();
    submission->round = opened.round();
    submission->base_round = opened.base_round();
    submission->attempt = attempt_;
    submission->ranges.emplace_back();
    submission->ranges.back().set_end(grid_->chunks());
    submission->codec = layout;
    submission->lr_bits = opened.lr_bits();
    submission->work.tokens = 1;
    submission->pieces = writer.Finish();
    ISTHMUS_ASSIGN_OR_RETURN(const std::string hashes, BlockHashes(*grid_, submission->pieces));
    submission->digest = DigestOfBlocks(hashes);
    return submission;
  }

  // All values of a tile, with their places.
  void Gather(const ChunkPlace& place) {
    components_.value.clear();
    for (uint32_t row = 0; row < place.shape.rows; ++row) {
      const float* const first = values_.data() + place.first_element + row * place.stride;
      components_.value.insert(components_.value.end(), first, first + place.shape.cols);
    }
    components_.index.resize(components_.value.size());
    std::iota(components_.index.begin(), components_.index.end(), 0u);
  }

  absl::Status Decode(const CommittedUpdate& update) {
    Components components;
    for (const std::string& bytes : update.pieces) {
      ISTHMUS_ASSIGN_OR_RETURN(const PieceView piece, OpenPiece(*grid_, bytes));
      ChunkReader reader(grid_.get(), piece);
      while (!reader.done()) {
        const ChunkPlace place = grid_->Place(reader.next_chunk());
        ISTHMUS_RETURN_IF_ERROR(reader.Next(&components).status());
        if (components.value.size() != place.shape.elements()) {
          return absl::InternalError("an update of all values lacks some");
        }
        for (uint32_t row = 0; row < place.shape.rows; ++row) {
          const float* const from = components.value.data() + row * place.shape.cols;
          std::copy(from, from + place.shape.cols,
                    merged_.data() + place.first_element + row * place.stride);
        }
      }
    }
    return absl::OkStatus();
  }

  // Exact formats: the mean of the nodes' values. Others: closer to it than nothing would be.
  absl::Status Compare() const {
    const v1::NumberFormat format = spec_.codec().numbers().format();
    const bool exact = format == v1::NUMBER_FORMAT_UNSPECIFIED || format == v1::NUMBER_FORMAT_F32;
    double error = 0, size = 0;
    for (uint64_t i = 0; i < merged_.size(); ++i) {
      float mean = 0;
      for (int node = 0; node < spec_.nodes_size(); ++node) mean += ValueOf(i, node);
      mean /= static_cast<float>(spec_.nodes_size());
      const float off = std::abs(merged_[i] - mean);
      if (exact && off > kExactBound) {
        return absl::InternalError(
            absl::StrCat("value ", i, " is ", merged_[i], "; the mean is ", mean));
      }
      error += off;
      // Signs have no size of their own: all that can be said is which.
      size += format == v1::NUMBER_FORMAT_SIGN1 ? 1.0 : std::abs(mean);
    }
    if (error < size) return absl::OkStatus();
    return absl::InternalError(
        absl::StrCat("the update is off by ", error, " in all, where the mean itself is ", size));
  }

  v1::RunSpec spec_;
  int number_ = 0;
  std::unique_ptr<const Grid> grid_;
  std::vector<float> values_;
  std::vector<float> merged_;
  Components components_;
  uint64_t attempt_ = 0;
  uint64_t round_ = 0;  // the last one done
  Listener listener_;
  std::unique_ptr<Session> session_;  // first to go
};

absl::Status Serve() {
  Node node;
  ISTHMUS_RETURN_IF_ERROR(node.Start());
  std::cout << "ready" << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    ISTHMUS_ASSIGN_OR_RETURN(const std::string answer, node.Round());
    std::cout << answer << std::endl;
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace isthmus

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  isthmus::StartLog("dense_round", "warning");
  const absl::Status status = isthmus::Serve();
  if (status.ok()) return 0;
  std::fprintf(stderr, "dense_round: %s\n", std::string(status.message()).c_str());
  return 1;
}
