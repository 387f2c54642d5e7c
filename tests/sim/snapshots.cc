// Snapshots in a simulated node: it gives its state away, and starts from another's.
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "spec/manifest.h"
#include "spec/section_ranges.h"
#include "spec/state_hash.h"
#include "tests/sim/node.h"
#include "transport/errors.h"

namespace isthmus::sim {
namespace {

constexpr int64_t kRetryMs = 500;
constexpr uint64_t kOneBits = 0x3ff0000000000000;  // 1.0 as float64
// Elements of a piece: several in so small a model.
constexpr uint64_t kPieceElements = 20;

std::string ValuesOf(const Tensors& tensors) {
  std::string values;
  for (const std::vector<float>& tensor : tensors) {
    values.append(reinterpret_cast<const char*>(tensor.data()), tensor.size() * sizeof(float));
  }
  return values;
}

}  // namespace

v1::SnapshotFacts Node::Facts() const {
  v1::SnapshotFacts facts;
  facts.set_run(scene_->plan.spec.run());
  facts.set_round(trainer_->round());
  facts.set_update_sha256(trainer_->sha256());
  facts.set_step(trainer_->round());
  facts.set_sections(1);
  facts.set_beta1_power_bits(kOneBits);
  facts.set_beta2_power_bits(kOneBits);
  facts.set_elements(scene_->grid->elements());
  facts.set_fingerprint(Fingerprint(scene_->plan.manifest));
  StateHasher hasher(*scene_->grid, facts);
  ISTHMUS_CHECK(hasher.Add(ValuesOf(trainer_->parameters())).ok());
  facts.set_state_sha256(*hasher.Finish());
  return facts;
}

void Node::DoSnapshotDuty(v1::SnapshotDuty duty) {
  if (duty == v1::SNAPSHOT_DUTY_UNSPECIFIED) return;
  const auto facts = std::make_shared<const v1::SnapshotFacts>(Facts());
  session_->SetStateReport(facts->round(), facts->state_sha256());
  if (duty != v1::SNAPSHOT_DUTY_UPLOAD) return;
  Upload(facts, ValuesOf(trainer_->parameters()), machine_.life());
}

// One call: what it brings is decided by what the coordinator says is missing at its begin.
void Node::Upload(std::shared_ptr<const v1::SnapshotFacts> facts, std::string values,
                  uint64_t life) {
  if (life != machine_.life()) return;  // the copy is gone with the trainer
  const auto again = [this, facts, values, life] {
    machine_.After(kRetryMs, [=] { Upload(facts, values, life); });
  };
  if (session_ == nullptr || !agent_.up()) return again();
  v1::UploadSnapshotHeader header;
  header.set_run(facts->run());
  header.set_node(name_);
  header.set_incarnation(session_->incarnation());
  *header.mutable_facts() = *facts;
  WriteRanges(AllRanges(1, facts->elements()), header.mutable_ranges());
  // Some pieces, not all: a call may break off anywhere.
  const uint64_t pieces = (facts->elements() + kPieceElements - 1) / kPieceElements;
  const uint64_t sent =
      static_cast<uint64_t>(scene_->world.random().Between(1, static_cast<int64_t>(pieces)));
  const auto serve = [header, values,
                      sent](Coordinator& host) -> absl::StatusOr<v1::UploadSnapshotResponse> {
    auto asked = host.BeginUpload(header);
    if (!asked.ok()) return asked.status();
    const auto before = (*asked)->End();
    if (!before.ok() || before->missing().empty()) return before;
    auto sink = host.BeginUpload(header);
    if (!sink.ok()) return sink.status();
    uint64_t at = before->missing(0).begin();
    for (uint64_t i = 0; i < sent && at * sizeof(float) < values.size(); ++i) {
      v1::SnapshotPiece piece;
      piece.set_begin(at);
      piece.set_data(values.substr(at * sizeof(float), kPieceElements * sizeof(float)));
      at += kPieceElements;
      const absl::Status added = (*sink)->AddPiece(piece);
      if (!added.ok()) return added;
    }
    return (*sink)->End();
  };
  link_.Call<v1::UploadSnapshotResponse>(
      &agent_, serve, [=](const absl::StatusOr<v1::UploadSnapshotResponse>& answer) {
        if (answer.ok() && answer->missing().empty()) return;
        if (answer.ok() || IsRetryable(answer.status()) || AsksToJoinAgain(answer.status())) {
          return again();
        }
        Trace(absl::StrCat("its state is not taken: ", answer.status().message()));
      });
}

void Node::Fetch() {
  struct Fetched {
    v1::SnapshotFacts facts;
    std::string values;
  };
  v1::FetchSnapshotRequest request;
  WriteRanges(AllRanges(1, scene_->grid->elements()), request.mutable_ranges());
  link_.Call<Fetched>(
      &agent_,
      [request](Coordinator& host) -> absl::StatusOr<Fetched> {
        auto source = host.BeginFetch(request);
        if (!source.ok()) return source.status();
        Fetched fetched;
        for (;;) {
          auto message = (*source)->Next();
          if (!message.ok()) return message.status();
          if (!message->has_value()) return fetched;
          if ((*message)->has_facts()) fetched.facts = (*message)->facts();
          if ((*message)->has_piece()) fetched.values += (*message)->piece().data();
        }
      },
      [this](const absl::StatusOr<Fetched>& fetched) {
        if (fetched.ok()) return StartFrom(fetched->facts, fetched->values);
        Trace(absl::StrCat("cannot fetch a snapshot: ", fetched.status().message()));
        agent_.After(kRetryMs, [this] { Fetch(); });
      });
}

// A new group of trainers, as their join says; what the old one had not settled is lost.
void Node::StartFrom(const v1::SnapshotFacts& facts, const std::string& values) {
  Trainer::Checkpoint from;
  from.round = facts.round();
  from.sha256 = facts.update_sha256();
  from.parameters = trainer_->parameters();
  size_t at = 0;
  for (std::vector<float>& tensor : from.parameters) {
    std::memcpy(tensor.data(), values.data() + at, tensor.size() * sizeof(float));
    at += tensor.size() * sizeof(float);
  }
  if (at != values.size()) scene_->Fail(absl::StrCat(name_, " fetched a snapshot that is short"));
  ++fetched_;
  machine_.End();
  trainer_->Die();
  Bury();
  trainer_.reset();
  checkpoint_ = from;
  StartTrainer();
  if (Facts().state_sha256() != facts.state_sha256()) {
    scene_->Fail(absl::StrCat(name_, " fetched a snapshot with another hash than its facts say"));
  }
  Connect();
}

}  // namespace isthmus::sim
