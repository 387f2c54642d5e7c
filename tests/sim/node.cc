#include "tests/sim/node.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/limits.h"
#include "base/sha256.h"
#include "spec/manifest.h"
#include "spec/rounds.h"
#include "transport/errors.h"

namespace isthmus::sim {

Node::Node(Scene* scene, size_t number, CoordinatorProcess* coordinator)
    : scene_(scene),
      number_(number),
      name_(scene->plan.spec.nodes(static_cast<int>(number)).name()),
      link_(scene, coordinator),
      agent_(&scene->world, absl::StrCat(name_, " agent")),
      machine_(&scene->world, absl::StrCat(name_, " trainer")),
      checkpoint_(Trainer::StartState(*scene)) {
  folder_.secret = absl::StrCat("secret of ", name_, ", long enough");
  const Sums zero = ZeroSums(*scene->grid);
  past_ = {zero, zero, zero, zero};
}

Node::~Node() = default;

void Node::StartTrainer() {
  ISTHMUS_CHECK(trainer_ == nullptr);
  machine_.Begin();
  const bool replay = scene_->plan.replays();
  Trace(absl::StrCat("trainer starts from round ", checkpoint_.round));
  checked_ = RoundHash();
  trainer_ =
      std::make_unique<Trainer>(scene_, number_, name_, machine_.life(), checkpoint_, replay);
  computing_ = 0;
  done_ = false;
}

void Node::StartAgent() {
  ISTHMUS_CHECK(!agent_.up() && trainer_ != nullptr);
  agent_.Begin();
  Trace("agent starts");
  Connect();
}

void Node::Connect() {
  v1::JoinRunRequest join;
  join.set_run(scene_->plan.spec.run());
  join.set_node(name_);
  join.set_role(v1::ROLE_NODE);
  *join.mutable_manifest() = scene_->plan.manifest;
  join.set_fingerprint(Fingerprint(join.manifest()));
  join.set_state_sha256(Facts().state_sha256());
  join.set_last_round(trainer_->round());
  join.set_last_update_sha256(trainer_->sha256());
  join.set_secret(folder_.secret);
  join.set_attempt(trainer_->attempt());
  SimSession::Options options;
  options.scene = scene_;
  options.process = &agent_;
  options.link = &link_;
  options.join = join;
  options.listener = this;
  options.receipt = [this](const v1::SubmitResponse& receipt) {
    if (receipt.digest().empty()) return;
    Event event;
    event.kind = EventKind::kReceipt;
    event.node = name_;
    event.round = receipt.round();
    event.digest = receipt.digest();
    scene_->Record(event);
    if (trainer_ != nullptr) trainer_->TakeReceipt(receipt.round());
  };
  opened_.clear();
  session_ = std::make_unique<SimSession>(std::move(options));
  session_->SetCheckpoint(checkpoint_.round);
  // The ranks tell another agent what they told the last one.
  if (checked_.round != 0) session_->AddCheck(checked_.round, checked_.sha256);
}

void Node::OnJoined(const v1::JoinRunResponse& joined) {
  Trace(absl::StrCat("joined, incarnation ", joined.incarnation(), " attempt ", joined.attempt()));
  trainer_->set_attempt(joined.attempt());
}

void Node::OnOpened(const v1::RoundOpened& opened) {
  if (opened.round() <= trainer_->round()) return;
  opened_[opened.round()] = opened.snapshot();
  if (trainer_->pending(opened.round()) != nullptr) return Send(opened.round());
  ComputeNext();
}

// One round after the other.
void Node::ComputeNext() {
  if (computing_ != 0) return;
  for (const auto& [round, duty] : opened_) {
    if (trainer_->pending(round) != nullptr) continue;
    computing_ = round;
    machine_.After(scene_->world.random().Between(1, scene_->plan.compute_max_ms),
                   [this, round = round] { Compute(round); });
    return;
  }
}

void Node::Compute(uint64_t round) {
  if (computing_ != round) return;
  computing_ = 0;
  // A replay may have been faster, and a new session not have heard of the round.
  if (opened_.count(round) > 0 && trainer_->pending(round) == nullptr) {
    const std::shared_ptr<const Submission> made = trainer_->Compute(round);
    Trace(made->abstain_reason.empty() ? absl::StrCat("computed round ", round)
                                       : absl::StrCat("abstains from round ", round));
    Send(round);
  }
  ComputeNext();
}

// What the trainer holds goes out, for the first time or to a new session.
void Node::Send(uint64_t round) {
  const std::shared_ptr<const Submission> pending = trainer_->pending(round);
  if (session_ == nullptr || pending == nullptr || opened_.count(round) == 0) return;
  if (!pending->digest.empty()) {
    folder_.sent[round] = {pending->attempt, pending->digest};
    if (folder_.sent.size() > 1 + kOverlapMax) folder_.sent.erase(folder_.sent.begin());
  }
  session_->Submit(pending, [this, round = pending->round](const absl::Status& status) {
    Trace(absl::StrCat("round ", round, " was refused: ", status.message()));
  });
}

bool Node::OwnIncluded(const v1::UpdateRecord& record) const {
  const auto sent = folder_.sent.find(record.round());
  if (sent == folder_.sent.end() || sent->second.attempt != trainer_->attempt()) return false;
  for (const v1::IncludedContribution& included : record.included()) {
    if (included.node() == name_) return included.digest() == sent->second.digest;
  }
  return false;
}

void Node::OnUpdate(std::shared_ptr<const CommittedUpdate> update) {
  const uint64_t round = update->record.round();
  const std::shared_ptr<const Submission> sent = trainer_->pending(round);
  const std::map<uint64_t, Trainer::Pending> before = trainer_->all_pending();
  trainer_->Take(*update, OwnIncluded(update->record));
  if (computing_ <= round) computing_ = 0;
  session_->Acknowledge(round, update->record.sha256());
  if (scene_->plan.FlipsAfter(number_, round) && flipped_.insert(round).second) {
    Trace(absl::StrCat("a bit is flipped after round ", round));
    trainer_->FlipBit();
  }
  if (IsChecked(scene_->plan.spec, round)) {
    checked_ = {round, Facts().state_sha256()};
    session_->AddCheck(round, checked_.sha256);
  }
  if (const auto open = opened_.find(round); open != opened_.end()) DoSnapshotDuty(open->second);
  opened_.erase(opened_.begin(), opened_.upper_bound(round));
  // A replay may have computed for rounds that are open.
  for (const auto& [later, pending] : trainer_->all_pending()) {
    if (before.count(later) == 0) Send(later);
  }
  const uint64_t every = scene_->plan.checkpoint_every;
  if (every != 0 && round % every == 0) {
    checkpoint_ = trainer_->Save();
    session_->SetCheckpoint(round);
  }
  // The bug: what is not settled by its own number is sent under the next one.
  if (scene_->plan.bug == Bug::kCountTwice && sent != nullptr && !sent->digest.empty() &&
      scene_->world.random().Chance(100)) {
    auto again = std::make_shared<Submission>(*sent);
    again->round = round + 1;
    again->base_round = round - std::min<uint64_t>(round, scene_->plan.spec.overlap());
    session_->Submit(again, nullptr);
  }
  ComputeNext();
}

void Node::OnFinished(uint64_t last_round) {
  if (trainer_->round() != last_round) scene_->Fail(absl::StrCat(name_, " finishes early"));
  Trace("has all of the run");
  done_ = true;
}

void Node::OnEnded(const absl::Status& status) {
  if (AsksForSnapshot(status)) {
    Trace(absl::StrCat("is to fetch a snapshot: ", status.message()));
    return Fetch();
  }
  if (ReasonOf(status) == "NODE_EVICTED") {
    // As in life: the ranks end with the sentence.
    Trace("is evicted");
    return scene_->world.After(0, [this, life = machine_.life()] {
      if (life == machine_.life()) CrashTrainer();
    });
  }
  scene_->Fail(absl::StrCat("the session of ", name_, " has ended: ", status.ToString()));
}

void Node::CrashAgent() {
  if (!agent_.up()) return;
  Trace("agent is killed");
  agent_.End();
  session_.reset();
}

void Node::CrashTrainer() {
  if (trainer_ == nullptr) return;
  CrashAgent();
  Trace(absl::StrCat("trainer is killed at round ", trainer_->round()));
  machine_.End();
  trainer_->Die();
  Bury();
  trainer_.reset();
  done_ = false;
}

void Node::Bury() {
  const auto add = [](const Sums& from, Sums* to) {
    for (size_t t = 0; t < from.size(); ++t) {
      for (size_t e = 0; e < from[t].size(); ++e) (*to)[t][e] += from[t][e];
    }
  };
  const PlainResidual& plain = trainer_->plain();
  add(plain.inputs(), &past_.inputs);
  add(plain.outputs(), &past_.outputs);
  add(plain.Pending(), &past_.pending);
  Add(plain.values(), 1.0, &past_.residual);
  skipped_ += trainer_->skipped();
}

void Node::Pause(int64_t ms) {
  Trace(absl::StrCat("stands still for ", ms, " ms"));
  agent_.Pause(ms);
  machine_.Pause(ms);
}

void Node::Leave() {
  if (!agent_.up() || !session_->connected()) return;
  Trace("leaves");
  session_->Leave("told to");
  agent_.End();
  session_.reset();
}

std::string Node::State() const {
  if (trainer_ == nullptr) return absl::StrCat(name_, " has no trainer");
  return absl::StrCat(name_, " at round ", trainer_->round(),
                      trainer_->all_pending().empty() ? "" : ", has sent",
                      computing_ != 0 ? ", computes" : "", agent_.up() ? "" : ", has no agent",
                      done_ ? ", done" : "");
}

}  // namespace isthmus::sim
