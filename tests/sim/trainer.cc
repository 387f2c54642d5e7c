#include "tests/sim/trainer.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/sha256.h"
#include "spec/piece.h"
#include "spec/run_spec.h"
#include "tests/spec/forgery.h"

namespace isthmus::sim {
namespace {

float FloatOf(uint32_t bits) {
  float value = 0;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

std::vector<TensorPart<const float>> ConstParts(const Tensors& tensors) {
  std::vector<TensorPart<const float>> parts;
  for (uint32_t t = 0; t < tensors.size(); ++t) parts.push_back({t, 0, tensors[t]});
  return parts;
}

std::vector<const std::string*> Pointers(const std::vector<std::string>& pieces) {
  std::vector<const std::string*> pointers;
  for (const std::string& piece : pieces) pointers.push_back(&piece);
  return pointers;
}

}  // namespace

Trainer::Checkpoint Trainer::StartState(const Scene& scene) {
  Checkpoint start;
  start.parameters = ZeroTensors(*scene.grid);
  Random random(scene.plan.seed + 17);
  for (std::vector<float>& tensor : start.parameters) {
    for (float& value : tensor) value = random.Value();
  }
  return start;
}

Trainer::Trainer(Scene* scene, size_t number, const std::string& node, uint64_t life,
                 const Checkpoint& from, bool replay)
    : scene_(scene),
      number_(number),
      node_(node),
      life_(life),
      replay_(replay),
      round_(from.round),
      sha256_(from.sha256),
      parameters_(from.parameters),
      plain_(scene->grid, scene->plan.spec.codec().beta(), scene->plan.spec.codec().alpha()) {
  if (replay && from.method != nullptr) {
    method_ = std::make_unique<DemoShard>(*from.method);
    plain_ = *from.plain;
    pending_ = from.pending;
  } else {
    MethodOptions options;
    options.grid = scene->grid.get();
    options.codec = scene->plan.spec.codec();
    options.optimizer = scene->plan.spec.optimizer();
    options.piece_bytes_max = scene->plan.piece_bytes;
    absl::StatusOr<DemoShard> made = DemoShard::Make(options, ConstParts(parameters_));
    ISTHMUS_CHECK(made.ok());
    method_ = std::make_unique<DemoShard>(*std::move(made));
  }
  computed_ = pending_.empty() ? round_ : pending_.rbegin()->first;
  Record(EventKind::kRestored, round_);
  for (const auto& [round, pending] : pending_) {
    if (IsReserved(pending)) Record(EventKind::kComputed, round);
  }
}

void Trainer::set_attempt(uint64_t attempt) {
  attempt_ = attempt;
  for (auto& [round, pending] : pending_) {
    auto renamed = std::make_shared<Submission>(*pending.submission);
    renamed->attempt = attempt;
    pending.submission = renamed;
  }
}

std::shared_ptr<const Submission> Trainer::pending(uint64_t round) const {
  const auto found = pending_.find(round);
  return found == pending_.end() ? nullptr : found->second.submission;
}

std::string Trainer::StateHash() const {
  Sha256 hash;
  for (const std::vector<float>& tensor : parameters_) {
    hash.Update(tensor.data(), tensor.size() * sizeof(float));
  }
  return hash.Finish();
}

void Trainer::Record(EventKind kind, uint64_t round, Outcome outcome) {
  Event event;
  event.kind = kind;
  event.node = node_;
  event.life = life_;
  event.round = round;
  event.outcome = outcome;
  if (kind == EventKind::kRestored || kind == EventKind::kApplied) {
    event.sha256 = sha256_;
    // Who is right is not the history's to say where states differ on purpose.
    if (scene_->plan.flip_permille == 0) event.state = StateHash();
  } else {
    event.digest = pending_.at(round).digest;
  }
  if (kind == EventKind::kComputed) {
    event.pieces =
        std::make_shared<const std::vector<std::string>>(pending_.at(round).submission->pieces);
  }
  scene_->Record(event);
}

// Towards a point that all nodes share, with noise of their own.
Tensors Trainer::Gradient(uint64_t round) const {
  Random random(scene_->plan.seed * 101 + round * 1013 + number_);
  Tensors gradient = parameters_;
  const auto look = static_cast<float>(scene_->plan.spec.look());
  if (look > 0) ISTHMUS_CHECK(method_->LookAhead(look, Parts(&gradient)).ok());
  for (std::vector<float>& tensor : gradient) {
    for (float& value : tensor) value = 0.25f * (value - kTarget) + random.Value();
  }
  return gradient;
}

std::shared_ptr<const Submission> Trainer::Compute(uint64_t round) {
  ISTHMUS_CHECK(pending_.count(round) == 0);
  computed_ = std::max(computed_, round);
  auto submission = std::make_shared<Submission>();
  submission->round = round;
  submission->base_round = round - std::min<uint64_t>(round, 1 + scene_->plan.spec.overlap());
  submission->attempt = attempt_;
  submission->work.tokens = 64;
  const Plan::Fate fate = scene_->plan.FateOf(number_, round);
  Tensors gradient = Gradient(round);
  if (fate == Plan::Fate::kAbstains) gradient[0][0] = std::numeric_limits<float>::quiet_NaN();
  const float eta = LearningRate(scene_->plan.spec, round);
  absl::StatusOr<std::vector<std::string>> pieces =
      method_->Encode(round, eta, ConstParts(gradient));
  if (!pieces.ok()) {
    ISTHMUS_CHECK(fate == Plan::Fate::kAbstains);
    submission->abstain_reason = std::string(pieces.status().message());
    return (pending_[round] = {submission, "", false}).submission;
  }
  submission->pieces = *std::move(pieces);
  submission->ranges.emplace_back();
  submission->ranges.back().set_end(scene_->grid->chunks());
  const auto digest = PayloadDigest(*scene_->grid, Pointers(submission->pieces));
  ISTHMUS_CHECK(digest.ok());
  submission->digest = *digest;
  pending_[round] = {submission, *digest, false};
  Record(EventKind::kComputed, round);
  plain_.Computed(round, eta, gradient,
                  std::make_shared<const std::vector<std::string>>(submission->pieces));
  CheckResidual();
  if (fate == Plan::Fate::kSpoilt) {
    auto spoilt = std::make_shared<Submission>(*submission);
    SetLastValue(std::numeric_limits<float>::quiet_NaN(), &spoilt->pieces.back());
    pending_[round].submission = spoilt;
  }
  return pending_[round].submission;
}

void Trainer::Settle(uint64_t round, bool included) {
  const auto found = pending_.find(round);
  if (found == pending_.end()) return;
  if (IsReserved(found->second)) {
    const bool forget = scene_->plan.bug == Bug::kForgetLeftOut;
    method_->Settle(round, included || forget);
    plain_.Settled(round, included);
    Record(EventKind::kSettled, round, included ? Outcome::kIncluded : Outcome::kLeftOut);
    CheckResidual();
  }
  pending_.erase(round);
}

void Trainer::TakeReceipt(uint64_t round) {
  if (scene_->plan.bug != Bug::kSettleByReceipt) return;
  const auto found = pending_.find(round);
  if (found == pending_.end() || !IsReserved(found->second)) return;
  found->second.settled_early = true;
  method_->Settle(round, true);
  plain_.Settled(round, true);
  Record(EventKind::kSettled, round, Outcome::kIncluded);
}

// Computes what was lost with an earlier life: all that is made of the state before the update.
void Trainer::Replay(const v1::UpdateRecord& record) {
  const v1::RunSpec& spec = scene_->plan.spec;
  while (computed_ < std::min(record.round() + spec.overlap(), spec.steps())) {
    Compute(computed_ + 1);
  }
  for (const v1::IncludedContribution& one : record.included()) {
    const bool same = one.digest() == pending_.at(record.round()).digest;
    if (one.node() != node_ || same) continue;
    scene_->Fail(absl::StrCat(node_, " computes another contribution to round ", record.round(),
                              " than it did before"));
  }
}

void Trainer::Take(const CommittedUpdate& update, bool own_included) {
  const v1::UpdateRecord& record = update.record;
  Event received;
  received.kind = EventKind::kReceived;
  received.node = node_;
  received.life = life_;
  received.round = record.round();
  received.record = std::make_shared<const v1::UpdateRecord>(record);
  received.pieces = std::make_shared<const std::vector<std::string>>(update.pieces);
  scene_->Record(received);
  if (record.round() != round_ + 1) return;
  if (replay_) {
    Replay(record);
    own_included = false;
    for (const v1::IncludedContribution& one : record.included()) {
      own_included |= one.node() == node_ && one.digest() == pending_.at(record.round()).digest;
    }
  }
  if (pending_.count(record.round()) == 0) ++skipped_;
  Settle(record.round(), own_included);
  UpdateRates rates;
  rates.lr = FloatOf(record.lr_bits());
  rates.weight_decay = FloatOf(record.weight_decay_bits());
  rates.norm = FloatOf(record.norm_bits());
  const absl::Status applied = method_->Apply(rates, Pointers(update.pieces), Parts(&parameters_));
  if (!applied.ok()) scene_->Fail(absl::StrCat(node_, ": ", applied.ToString()));
  round_ = record.round();
  sha256_ = record.sha256();
  Record(EventKind::kApplied, round_);
}

std::vector<TensorPart<float>> Trainer::Parts(Tensors* tensors) {
  std::vector<TensorPart<float>> parts;
  for (uint32_t t = 0; t < tensors->size(); ++t) {
    parts.push_back({t, 0, absl::MakeSpan((*tensors)[t])});
  }
  return parts;
}

Trainer::Checkpoint Trainer::Save() const {
  return {round_,
          sha256_,
          parameters_,
          std::make_shared<const DemoShard>(*method_),
          std::make_shared<const PlainResidual>(plain_),
          pending_};
}

// No two nodes come to the same state by it.
void Trainer::FlipBit() {
  float& value = parameters_[0][number_ % parameters_[0].size()];
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  bits ^= uint32_t{1} << 12;
  std::memcpy(&value, &bits, sizeof(bits));
}

void Trainer::Die() {
  for (const auto& [round, pending] : pending_) {
    if (IsReserved(pending)) Record(EventKind::kSettled, round, Outcome::kDropped);
  }
}

void Trainer::CheckResidual() {
  for (size_t t = 0; t < parameters_.size(); ++t) {
    const absl::Span<const float> got = method_->residual(t);
    const std::vector<float>& expected = plain_.values()[t];
    ISTHMUS_CHECK(got.size() == expected.size());
    if (std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)) == 0) continue;
    scene_->Fail(absl::StrCat("the residual of ", node_, " differs from the plain one in tensor ",
                              scene_->grid->tensor_name(static_cast<uint32_t>(t))));
  }
}

}  // namespace isthmus::sim
