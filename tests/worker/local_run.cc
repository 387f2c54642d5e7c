#include "tests/worker/local_run.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "kernels/aggregate.h"
#include "kernels/demo.h"
#include "spec/piece.h"
#include "spec/rounds.h"
#include "spec/rows.h"
#include "spec/run_spec.h"
#include "spec/stages.h"
#include "spec/update_record.h"

namespace isthmus {
namespace {

uint32_t BitsOf(float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

std::vector<Components> ChunksOf(const Grid& grid, const std::vector<std::string>& pieces) {
  std::vector<Components> chunks(grid.chunks());
  for (const std::string& piece : pieces) {
    const auto opened = OpenPiece(grid, piece);
    ISTHMUS_CHECK(opened.ok());
    ISTHMUS_CHECK(ForEachChunk(grid, *opened, [&](uint64_t chunk, const Components& components) {
                    chunks[chunk] = components;
                    return absl::OkStatus();
                  }).ok());
  }
  return chunks;
}

// What each sender has of a chunk.
std::vector<const Components*> OfChunk(const std::vector<std::vector<Components>>& senders,
                                       uint64_t chunk) {
  std::vector<const Components*> parts;
  for (const auto& sender : senders) parts.push_back(&sender[chunk]);
  return parts;
}

std::vector<float> MeanOf(const std::vector<const Components*>& senders) {
  std::vector<float> mean = senders[0]->value;
  for (size_t i = 0; i < mean.size(); ++i) {
    for (size_t node = 1; node < senders.size(); ++node) mean[i] += senders[node]->value[i];
    mean[i] /= static_cast<float>(senders.size());
  }
  return mean;
}

size_t Size(const std::vector<std::string>& pieces) {
  size_t bytes = 0;
  for (const std::string& piece : pieces) bytes += piece.size();
  return bytes;
}

}  // namespace

class LocalClient final : public RankClient {
 public:
  LocalClient(LocalRun* run, std::string node, int rank)
      : run_(run), node_(std::move(node)), rank_(rank) {}

  absl::StatusOr<v1::JoinRunResponse> FetchSpec() override {
    v1::JoinRunResponse response;
    *response.mutable_spec() = run_->spec_;
    response.set_node(node_);
    return response;
  }
  absl::StatusOr<v1::JoinRunResponse> Join(const v1::JoinRunRequest& request) override {
    const absl::Status joined = run_->Join(request);
    if (!joined.ok()) return joined;
    applied_ = request.last_round();
    return FetchSpec();
  }
  absl::StatusOr<std::optional<v1::RoundOpened>> WaitOpened(const ApplyUpdate& apply,
                                                            uint64_t own_through) override {
    using Opened = std::optional<v1::RoundOpened>;
    std::unique_lock<std::mutex> lock(run_->mutex_);
    for (;;) {
      const uint64_t committed = run_->updates_.size();
      const uint64_t next = std::max(opened_, committed) + 1;
      const bool is_open = next <= Rounds(run_->spec_) && Base(next) <= committed;
      if (committed > applied_ && (!is_open || applied_ < Base(next))) {
        if (!is_open && applied_ < own_through) return Opened(v1::RoundOpened());
        lock.unlock();
        const auto update = WaitUpdate();
        if (const absl::Status applied = apply(*update); !applied.ok()) return applied;
        lock.lock();
        continue;
      }
      if (is_open) return Opened(Open(next));
      if (applied_ == Rounds(run_->spec_)) return Opened();
      run_->changed_.wait(lock);
    }
  }
  absl::StatusOr<std::optional<Next>> WaitNext(uint64_t round) override {
    std::unique_lock<std::mutex> lock(run_->mutex_);
    if (round > Rounds(run_->spec_)) return std::optional<Next>();
    run_->changed_.wait(lock, [&] { return Base(round) <= run_->updates_.size(); });
    const bool closed = run_->updates_.size() >= round;
    return std::optional<Next>({Open(round), closed});
  }
  void Submit(const v1::RoundOpened& opened, std::vector<std::string> pieces,
              const Work& work) override {
    counters_.bytes_up += Size(pieces);
    submitted_.insert(opened.round());
    run_->Done(node_, opened.round(), {std::move(pieces), work, ""});
  }
  void Abstain(const v1::RoundOpened& opened, const std::string& reason) override {
    run_->Done(node_, opened.round(), {{}, {}, reason});
  }
  bool UpdateReady() override {
    std::lock_guard<std::mutex> lock(run_->mutex_);
    return run_->updates_.size() > applied_;
  }
  absl::StatusOr<Update> WaitUpdate() override {
    std::unique_lock<std::mutex> lock(run_->mutex_);
    run_->changed_.wait(lock, [&] { return run_->updates_.size() > applied_; });
    Update update;
    update.committed = run_->updates_[applied_++];
    for (const auto& included : update.committed->record.included()) {
      // As an agent says it: whether what the present trainers sent was merged.
      update.included |=
          included.node() == node_ && submitted_.count(update.committed->record.round()) > 0;
    }
    counters_.bytes_down += Size(update.committed->pieces);
    return update;
  }
  void Acknowledge(const Update&) override {}
  void Checkpointed(uint64_t round) override {
    std::lock_guard<std::mutex> lock(run_->mutex_);
    run_->checkpointed_[node_] = round;
  }
  void ReportState(uint64_t, const std::string&) override {}
  void UploadSnapshot(std::shared_ptr<const SnapshotParts>) override {}
  void FinishUpload() override {}
  absl::StatusOr<v1::SnapshotFacts> FetchSnapshot(
      std::optional<uint64_t>, const std::vector<SectionRange>&,
      const std::function<absl::Status(const v1::SnapshotPiece&)>&) override {
    return absl::UnimplementedError("a local run has no snapshots");
  }
  void Leave(const std::string&) override {}
  SessionCounters counters() const override { return counters_; }

 private:
  uint64_t Base(uint64_t round) const {
    return round - std::min<uint64_t>(round, 1 + run_->spec_.overlap());
  }
  // With the lock held.
  v1::RoundOpened Open(uint64_t round) {
    opened_ = round;
    v1::RoundOpened opened;
    opened.set_round(opened_);
    opened.set_base_round(Base(round));
    opened.set_step(StepAfterRound(run_->spec_, opened_));
    opened.set_lr_bits(BitsOf(RoundLearningRate(run_->spec_, opened_)));
    return opened;
  }

  LocalRun* run_;
  std::string node_;
  int rank_;
  uint64_t opened_ = 0;
  std::set<uint64_t> submitted_;
  uint64_t applied_ = 0;
  SessionCounters counters_;
};

LocalRun::LocalRun(v1::RunSpec spec, std::map<std::string, int> ranks_of_node)
    : spec_(std::move(spec)), ranks_of_node_(std::move(ranks_of_node)) {}

std::unique_ptr<RankClient> LocalRun::Client(const std::string& node, int rank) {
  return std::make_unique<LocalClient>(this, node, rank);
}

void LocalRun::LeaveOut(uint64_t round, const std::string& node) {
  left_out_[round].push_back(node);
}

void LocalRun::CloseWithout(uint64_t round, const std::string& node) {
  LeaveOut(round, node);
  closes_without_[round].insert(node);
}

void LocalRun::WaitRounds(uint64_t rounds) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [&] { return updates_.size() >= rounds; });
}

absl::Status LocalRun::Join(const v1::JoinRunRequest& request) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!grid_.has_value()) {
    auto grid = Grid::Make(request.manifest(), spec_.codec());
    if (!grid.ok()) return grid.status();
    grid_ = *std::move(grid);
  }
  joins_.push_back(request);
  // What earlier trainers sent for rounds that are still open is sent again.
  for (auto& [round, nodes] : open_) nodes.erase(request.node());
  return absl::OkStatus();
}

void LocalRun::Done(const std::string& node, uint64_t round, RankPart part) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (round <= updates_.size() && closes_without_[round].count(node) > 0) return;  // too late
  ISTHMUS_CHECK(round > updates_.size() && round <= updates_.size() + 1 + spec_.overlap());
  NodeRound& mine = open_[round][node];
  ++mine.ranks_done;
  for (std::string& piece : part.pieces) mine.pieces.push_back(std::move(piece));
  mine.work.tokens += part.work.tokens;
  mine.work.steps = part.work.steps;
  if (!part.abstain_reason.empty()) {
    mine.abstained = true;
    abstain_reasons_.push_back(part.abstain_reason);
  }
  while (IsComplete(updates_.size() + 1)) Commit(updates_.size() + 1);
}

bool LocalRun::IsComplete(uint64_t round) {
  if (open_.count(round) == 0) return false;
  for (const auto& [name, ranks] : ranks_of_node_) {
    if (open_[round][name].ranks_done < ranks && closes_without_[round].count(name) == 0) {
      return false;
    }
  }
  return true;
}

// The values of UpdateForm::kAggregate, in F32 or as spec_.codec().reply() says.
std::vector<std::string> LocalRun::Aggregate(
    const std::vector<std::vector<Components>>& senders) const {
  PieceWriter writer(&*grid_, v1::PAYLOAD_CODEC_REPLY, kPieceBytesMax);
  for (uint64_t chunk = 0; chunk < grid_->chunks(); ++chunk) {
    const size_t elements = grid_->Place(chunk).shape.elements();
    std::vector<std::vector<float>> dense;
    std::vector<const float*> rows;
    for (const Components* sent : OfChunk(senders, chunk)) {
      dense.push_back(sent->value);
      if (sent->index.empty()) continue;
      dense.back().assign(elements, 0.0f);
      for (size_t i = 0; i < sent->size(); ++i) dense.back()[sent->index[i]] = sent->value[i];
    }
    for (const std::vector<float>& row : dense) rows.push_back(row.data());
    std::vector<float> merged(elements);
    AggregateBlock(AggregateSettingsOf(spec_.aggregate()), rows, {}, absl::MakeSpan(merged));
    writer.AppendValues(chunk, merged);
  }
  return writer.Finish();
}

void LocalRun::Commit(uint64_t round) {
  auto update = std::make_shared<CommittedUpdate>();
  v1::UpdateRecord& record = update->record;
  record.set_run(spec_.run());
  record.set_round(round);
  record.set_base_round(round - std::min<uint64_t>(round, 1 + spec_.overlap()));
  record.set_step(StepAfterRound(spec_, round));
  record.set_lr_bits(BitsOf(RoundLearningRate(spec_, round)));
  record.set_weight_decay_bits(BitsOf(spec_.optimizer().weight_decay()));
  std::vector<std::vector<Components>> senders;  // ascending by node
  for (const auto& [node, mine] : open_[round]) {
    if (!mine.abstained) works_[round][node] = mine.work;
    const std::vector<std::string>& out = left_out_[round];
    if (mine.abstained || std::find(out.begin(), out.end(), node) != out.end()) continue;
    std::vector<const std::string*> pieces;
    for (const std::string& piece : mine.pieces) pieces.push_back(&piece);
    const auto digest = PayloadDigest(*grid_, pieces);
    ISTHMUS_CHECK(digest.ok());
    v1::IncludedContribution* included = record.add_included();
    included->set_node(node);
    included->set_digest(*digest);
    senders.push_back(ChunksOf(*grid_, mine.pieces));
  }
  record.set_is_void(senders.empty());
  if (!senders.empty() && IsOuter(spec_)) update->pieces = Aggregate(senders);
  if (!senders.empty() && !IsOuter(spec_)) {
    PieceWriter writer(&*grid_, UpdateLayout(grid_->codec()), kPieceBytesMax);
    double squares = 0;
    for (uint64_t chunk = 0; chunk < grid_->chunks(); ++chunk) {
      Components merged;
      if (SendsRows(grid_->codec())) {
        merged.value = MeanOf(OfChunk(senders, chunk));
        writer.AppendValues(chunk, merged.value);
      } else {
        MergeBySenders(OfChunk(senders, chunk), grid_->Place(chunk).shape.elements(), &merged);
        writer.Append(chunk, merged);
      }
      for (float value : merged.value) squares += static_cast<double>(value) * value;
    }
    record.set_norm_bits(BitsOf(static_cast<float>(std::sqrt(squares))));
    update->pieces = writer.Finish();
  }
  if (!updates_.empty()) record.set_previous_sha256(updates_.back()->record.sha256());
  record.set_sha256(UpdateRecordSha256(record));
  open_.erase(round);
  updates_.push_back(std::move(update));
  changed_.notify_all();
}

}  // namespace isthmus
