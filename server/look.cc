// What operators may see of the coordinator, and what is kept for them as a round goes by.
#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/text.h"
#include "server/coordinator.h"
#include "server/monitor_view.h"
#include "spec/rounds.h"

namespace isthmus {
namespace {

// A wait shorter than this is the normal life of a round and not worth a line.
constexpr int64_t kLogWaitAfterMs = 3000;
// The same for those who watch rounds.
constexpr int64_t kTellWaitAfterMs = 1000;

}  // namespace

RunFacts Coordinator::Look() const {
  std::lock_guard<std::mutex> lock(mutex_);
  RunFacts facts(machine_);
  facts.now_ms = NowMs();
  facts.wall = absl::Now();
  facts.started_ms = started_ms_;
  const uint64_t present = PresentRoundLocked();
  facts.spec = &revisions_.SpecOf(present);
  facts.spec_revision = revisions_.RevisionOf(present);
  facts.rounds = revisions_.rounds();
  facts.coming = revisions_.After(present);
  facts.fork = fork_;
  facts.stopped = StoppedSentenceLocked();
  facts.store = store_trail_.Look();
  facts.watches_dropped = watches_dropped_;
  facts.budget = pieces_.Look();
  facts.state_check = state_judge_.Stored();
  facts.last_update_sha256 = last_update_sha256_;
  facts.nodes.reserve(nodes_.size());
  for (const auto& [name, node] : nodes_) {
    facts.nodes.push_back({name, node.incarnation, node.watch != nullptr, node.trail});
    facts.nodes.back().trail.received_bytes = ReceivedLocked(name);
  }
  if (model_ == nullptr) return facts;
  facts.fingerprint = model_->fingerprint;
  facts.start_state_sha256 = model_->start_state_sha256;
  facts.parameters = model_->grid->elements();
  facts.tensors = model_->grid->tensors();
  facts.contribution_bytes = model_->sizes.total();
  return facts;
}

std::string Coordinator::StoppedSentenceLocked() const {
  if (!halted_.ok()) return absl::StrCat("the run is stopped: ", halted_.message());
  return RoundWithoutRoomLocked() != 0 ? FullSentenceLocked() : "";
}

std::string Coordinator::WaitingForLocked() const {
  std::string stopped = StoppedSentenceLocked();
  return stopped.empty() ? machine_.Decide(NowMs()).sentence : stopped;
}

void Coordinator::SayWhatIsWaitedForLocked(int64_t now_ms) {
  const Decision decision = machine_.Decide(now_ms);
  if (decision.cause != cause_) {
    cause_ = decision.cause;
    cause_since_ms_ = now_ms;
    cause_logged_ = cause_ == logged_dispute_;
    cause_told_ = false;
  }
  if (!cause_told_ && !machine_.finished() && now_ms - cause_since_ms_ >= kTellWaitAfterMs) {
    cause_told_ = true;
    history_.Waiting(decision.sentence, NowLocked());
  }
  if (cause_logged_ || machine_.finished() || now_ms - cause_since_ms_ < kLogWaitAfterMs) return;
  cause_logged_ = true;
  LogInfo(decision.sentence, {{"run", spec_.run()}});
}

uint64_t Coordinator::RoundWithoutRoomLocked() const {
  return job_.has_value() && store_trail_.full() ? job_->round.round : 0;
}

std::string Coordinator::FullSentenceLocked() const {
  return absl::StrCat("round ", RoundWithoutRoomLocked(),
                      ": no room on the coordinator's disk to store it; it goes on by itself when "
                      "there is");
}

Moment Coordinator::NowLocked() const { return {NowMs(), absl::Now()}; }

std::vector<std::string> Coordinator::NamesLocked() const {
  std::vector<std::string> names;
  for (const auto& [name, node] : nodes_) names.push_back(name);
  return names;
}

void Coordinator::NoteOpenedLocked(const OpenRound& effect) {
  history_.Opened(
      {effect.round, revisions_.StepAfter(effect.round), revisions_.LearningRateOf(effect.round),
       RoundNodes(machine_, effect.round, NamesLocked())},
      NowLocked());
}

std::shared_ptr<Aggregator> Coordinator::MakeAggregatorLocked() const {
  return std::make_shared<Aggregator>(model_->grid);
}

// What a contribution of so many bytes may need while it is held: pieces have headers and a cost of
// their own, and are cut as the node likes.
uint64_t Coordinator::NeedBytes(uint64_t contribution_bytes) {
  return contribution_bytes + contribution_bytes / 8 + (uint64_t{64} << 10);
}

void Coordinator::ReserveSharesLocked() {
  pieces_.SetOldest(machine_.committed_round() + 1, NeedBytes(model_->sizes.total()));
}

uint64_t Coordinator::ReceivedLocked(const std::string& node) const {
  if (aggregators_.empty()) return 0;
  const Contribution* held = aggregators_.begin()->second->Find(node);
  return held == nullptr ? 0 : held->bytes;
}

void Coordinator::NoteChangeLocked(const std::string& node, bool left) {
  NodeTrail& trail = nodes_[node].trail;
  trail.since_ms = NowMs();
  trail.left = left;
}

void Coordinator::NoteRefusalLocked(const std::string& name, uint64_t round,
                                    v1::NodeOutcome outcome, absl::string_view reason) {
  const auto node = nodes_.find(name);
  if (node == nodes_.end()) return;  // a join under a name that the spec does not have
  NodeTrail& trail = node->second.trail;
  trail.refused_ms = NowMs();
  trail.refused_round = round;
  trail.refused_outcome = outcome;
  trail.refused_reason = OneLine(reason, kReasonBytesMax);
}

}  // namespace isthmus
