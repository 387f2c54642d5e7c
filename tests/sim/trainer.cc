#include "tests/sim/trainer.h"

#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/sha256.h"
#include "spec/piece.h"
#include "spec/run_spec.h"
#include "tests/sim/forgery.h"

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
  Record(EventKind::kRestored, round_);
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
    event.state = StateHash();
  } else {
    event.digest = digest_;
  }
  if (kind == EventKind::kComputed) {
    event.pieces = std::make_shared<const std::vector<std::string>>(pending_->pieces);
  }
  scene_->Record(event);
}

// Towards a point that all nodes share, with noise of their own.
Tensors Trainer::Gradient(uint64_t round) const {
  Random random(scene_->plan.seed * 101 + round * 1013 + number_);
  Tensors gradient = parameters_;
  for (std::vector<float>& tensor : gradient) {
    for (float& value : tensor) value = 0.25f * (value - kTarget) + random.Value();
  }
  return gradient;
}

std::shared_ptr<const Submission> Trainer::Compute() {
  const uint64_t round = round_ + 1;
  ISTHMUS_CHECK(pending_ == nullptr);
  auto submission = std::make_shared<Submission>();
  submission->round = round;
  submission->base_round = round_;
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
    pending_ = submission;
    return pending_;
  }
  submission->pieces = *std::move(pieces);
  submission->ranges.emplace_back();
  submission->ranges.back().set_end(scene_->grid->chunks());
  const auto digest = PayloadDigest(*scene_->grid, Pointers(submission->pieces));
  ISTHMUS_CHECK(digest.ok());
  submission->digest = digest_ = *digest;
  pending_ = submission;
  settled_early_ = false;
  Record(EventKind::kComputed, round);
  plain_.Computed(round, eta, gradient,
                  std::make_shared<const std::vector<std::string>>(submission->pieces));
  CheckResidual();
  if (fate == Plan::Fate::kSpoilt) {
    auto spoilt = std::make_shared<Submission>(*submission);
    SetLastValue(std::numeric_limits<float>::quiet_NaN(), &spoilt->pieces.back());
    pending_ = spoilt;
  }
  return pending_;
}

void Trainer::Settle(uint64_t round, bool included) {
  if (pending_ == nullptr || pending_->round != round) return;
  if (!digest_.empty() && !settled_early_) {
    const bool forget = scene_->plan.bug == Bug::kForgetLeftOut;
    method_->Settle(round, included || forget);
    plain_.Settled(round, included);
    Record(EventKind::kSettled, round, included ? Outcome::kIncluded : Outcome::kLeftOut);
    CheckResidual();
  }
  pending_ = nullptr;
  digest_.clear();
}

void Trainer::TakeReceipt(uint64_t round) {
  if (scene_->plan.bug != Bug::kSettleByReceipt) return;
  if (pending_ == nullptr || pending_->round != round || digest_.empty() || settled_early_) return;
  settled_early_ = true;
  method_->Settle(round, true);
  plain_.Settled(round, true);
  Record(EventKind::kSettled, round, Outcome::kIncluded);
}

// Computes a round anew that was lost with an earlier life.
void Trainer::Replay(const v1::UpdateRecord& record) {
  if (pending_ != nullptr && pending_->round == record.round()) return;
  Compute();
  for (const v1::IncludedContribution& one : record.included()) {
    if (one.node() != node_ || one.digest() == digest_) continue;
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
      own_included |= one.node() == node_ && one.digest() == digest_;
    }
  }
  if (pending_ == nullptr) ++skipped_;
  Settle(record.round(), own_included);
  UpdateRates rates;
  rates.lr = FloatOf(record.lr_bits());
  rates.weight_decay = FloatOf(record.weight_decay_bits());
  rates.norm = FloatOf(record.norm_bits());
  const absl::Status applied = method_->Apply(rates, Pointers(update.pieces), Parts());
  if (!applied.ok()) scene_->Fail(absl::StrCat(node_, ": ", applied.ToString()));
  round_ = record.round();
  sha256_ = record.sha256();
  Record(EventKind::kApplied, round_);
}

std::vector<TensorPart<float>> Trainer::Parts() {
  std::vector<TensorPart<float>> parts;
  for (uint32_t t = 0; t < parameters_.size(); ++t) {
    parts.push_back({t, 0, absl::MakeSpan(parameters_[t])});
  }
  return parts;
}

Trainer::Checkpoint Trainer::Save() const {
  ISTHMUS_CHECK(pending_ == nullptr);
  return {round_, sha256_, parameters_, std::make_shared<const DemoShard>(*method_),
          std::make_shared<const PlainResidual>(plain_)};
}

void Trainer::Die() {
  if (pending_ == nullptr || digest_.empty() || settled_early_) return;
  Record(EventKind::kSettled, pending_->round, Outcome::kDropped);
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
