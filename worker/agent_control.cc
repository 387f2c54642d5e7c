// Start and end of the agent, the spec, and the session with the coordinator.
#include <algorithm>
#include <chrono>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/sha256.h"
#include "base/status_macros.h"
#include "spec/run_spec.h"
#include "transport/backoff.h"
#include "transport/errors.h"
#include "worker/agent_impl.h"

namespace isthmus {
namespace {

// How often the control thread looks whether a rank that had joined has gone silent.
constexpr std::chrono::milliseconds kTick(200);

// The sentence without its numbers of seconds, which pass while the cause stays.
std::string WithoutTimes(absl::string_view sentence) {
  std::string kept;
  while (!sentence.empty()) {
    const size_t digits = std::min(sentence.find_first_not_of("0123456789."), sentence.size());
    const absl::string_view rest = sentence.substr(digits);
    if (digits == 0) {
      kept.push_back(sentence.front());
      sentence.remove_prefix(1);
      continue;
    }
    const bool is_time = absl::StartsWith(rest, " s") || absl::StartsWith(rest, " ms");
    if (!is_time) absl::StrAppend(&kept, sentence.substr(0, digits));
    sentence = rest;
  }
  return kept;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Agent>> Agent::Start(const AgentOptions& options) {
  if (options.node.empty() || options.node.size() > kNameBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("the node's name has ", options.node.size(),
                                                   " bytes; it has 1 to ", kNameBytesMax));
  }
  if (options.ranks < 1 || options.ranks > kRanksMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("a node has 1 to ", kRanksMax, " ranks, not ", options.ranks));
  }
  ClientOptions client_options;
  client_options.address = options.coordinator;
  ISTHMUS_ASSIGN_OR_RETURN(auto client, Client::Make(client_options));
  ISTHMUS_ASSIGN_OR_RETURN(auto state, StateFolder::Open(options.state_dir));
  auto agent = std::make_unique<AgentImpl>(options, std::move(state), std::move(client));
  agent->StartControl();
  return agent;
}

AgentImpl::AgentImpl(const AgentOptions& options, std::unique_ptr<StateFolder> state,
                     std::unique_ptr<Client> client)
    : options_(options),
      client_(std::move(client)),
      state_(std::move(state)),
      spec_waiting_(absl::StrCat("connecting to ", options.coordinator)),
      watches_(options.ranks) {}

void AgentImpl::StartControl() { control_ = std::thread(&AgentImpl::Control, this); }

std::string AgentImpl::Name() const { return absl::StrCat("agent ", options_.node); }

absl::Status AgentImpl::Stopping() const {
  return WithReason(absl::UnavailableError(absl::StrCat(Name(), " stops: ", stop_reason_)),
                    kReasonShuttingDown);
}

AgentImpl::~AgentImpl() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
    // Without Stop before it this is a crash: nobody is told.
    upstream_ = session_ != nullptr ? Upstream::kClosing : Upstream::kNone;
  }
  changed_.notify_all();
  client_->Cancel();
  control_.join();
}

void AgentImpl::Stop(const std::string& reason) {
  Closings closings;
  std::unique_lock<std::mutex> lock(mutex_);
  if (!stopping_) {
    stopping_ = true;
    stop_reason_ = reason;
    leave_ = session_ != nullptr;
    if (leave_) upstream_ = Upstream::kClosing;
    TakeWatches(Stopping(), &closings);
    LogInfo("stopping", {{"reason", reason}});
  }
  changed_.notify_all();
  lock.unlock();
  client_->Cancel();
  Close(closings);
  lock.lock();
  // The control thread leaves upstream; it ends either way after one call's time.
  changed_.wait(lock, [this] { return ended_.has_value(); });
}

bool AgentImpl::WaitEnded(int timeout_ms) {
  std::unique_lock<std::mutex> lock(mutex_);
  return changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms),
                           [this] { return ended_.has_value(); });
}

absl::Status AgentImpl::ended() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return ended_.value_or(absl::OkStatus());
}

void AgentImpl::End(const absl::Status& status) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!ended_.has_value()) ended_ = status;
  changed_.notify_all();
}

void AgentImpl::Control() {
  if (!FetchSpec()) return;
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    if (upstream_ == Upstream::kClosing) CloseSession(&lock);
    if (stopping_ || ended_.has_value()) break;
    Tick();
    if (!broken_.empty()) {  // watches are never closed under the mutex
      const Closings closings = std::exchange(broken_, {});
      lock.unlock();
      Close(closings);
      lock.lock();
    }
    if (upstream_ == Upstream::kClosing || ended_.has_value()) continue;
    changed_.wait_for(lock, kTick);
  }
  lock.unlock();
  End(absl::OkStatus());
}

// Asks for the spec until it is there. False: the agent has ended.
bool AgentImpl::FetchSpec() {
  Backoff backoff(RandomBackoffSeed());
  v1::JoinRunRequest request;
  request.set_run(options_.run);
  request.set_node(options_.node);
  request.set_role(v1::ROLE_NODE);
  std::string told;
  while (true) {
    const absl::StatusOr<v1::JoinRunResponse> spec = client_->JoinRun(request);
    std::unique_lock<std::mutex> lock(mutex_);
    if (stopping_) break;
    if (spec.ok() && NodeIndex(spec->spec(), options_.node) >= 0) {
      TakeSpec(*spec);
      return true;
    }
    const absl::Status status = spec.ok() ? NotInSpec(spec->spec()) : spec.status();
    spec_waiting_ = std::string(status.message());
    if (!IsRetryable(status)) {
      LogError("refused", {{"by", options_.coordinator}, {"why", spec_waiting_}});
      refusal_ = status;
      // Ranks that wait for the spec ask again within this time and are told.
      if (rank_asked_) {
        changed_.wait_for(lock, std::chrono::milliseconds(kRefusalLingerMs),
                          [this] { return stopping_; });
      }
      break;
    }
    if (spec_waiting_ != told) {
      told = spec_waiting_;
      LogWarning("waiting for the coordinator", {{"at", options_.coordinator}, {"why", told}});
    }
    const int64_t delay_ms = backoff.NextDelayMs(std::max<int64_t>(RetryAfterMsOf(status), 0));
    changed_.wait_for(lock, std::chrono::milliseconds(delay_ms), [this] { return stopping_; });
    if (stopping_) break;
  }
  End(refusal_);
  return false;
}

absl::Status AgentImpl::NotInSpec(const v1::RunSpec& spec) const {
  std::vector<std::string> names;
  for (const v1::NodeSpec& node : spec.nodes()) names.push_back(node.name());
  constexpr size_t kShown = 16;
  const bool more = names.size() > kShown;
  if (more) names.resize(kShown);
  return WithReason(absl::NotFoundError(absl::StrCat(
                        "run '", spec.run(), "' has no node '", options_.node, "'; its nodes are ",
                        absl::StrJoin(names, ", "), more ? ", ..." : "")),
                    "UNKNOWN_NODE");
}

// Under the mutex.
void AgentImpl::TakeSpec(const v1::JoinRunResponse& spec) {
  spec_ = spec;
  spec_->set_node(options_.node);
  RankGroupOptions group;
  group.node = options_.node;
  group.ranks = options_.ranks;
  group.spec = spec.spec();
  group.knows_earlier_attempts = state_->durable();
  group_.emplace(group);
  LogInfo("spec received", {{"run", spec.spec().run()}, {"from", options_.coordinator}});
}

// Under the mutex: what follows from the state and the time. May set kClosing.
void AgentImpl::Tick() {
  LogWaiting();
  TellWaiting();
  if (upstream_ == Upstream::kNone && refusal_.ok() && group_->complete()) {
    const absl::Status started = StartSession();
    if (!started.ok()) refusal_ = started;
    return;
  }
  if (EndBrokenGroup()) return;
  // A refused group is over when all of its ranks are gone or told (JoinGroup marks them as left).
  const bool finished = !refusal_.ok() || (log_.has_value() && log_->finished());
  if (!group_->Over(finished, clock_.NowMs())) return;
  const absl::Status refusal = refusal_;
  LogInfo("the trainer group has ended", {{"node", options_.node}});
  exits_ = options_.exit_when_finished && finished && !group_broken_ && !AsksForSnapshot(refusal);
  group_broken_ = false;
  if (session_ != nullptr) {
    upstream_ = Upstream::kClosing;
    leave_ = true;
    leave_reason_ = LeaveReason();
  }
  group_->Reset();
  refusal_ = absl::OkStatus();
  if (exits_ && (session_ == nullptr || !refusal.ok())) ended_ = refusal;
}

// Under the mutex. A rank that is gone does not come back into its group, and its siblings may wait
// for a round that needs its part: they are told to end, and the node leaves.
bool AgentImpl::EndBrokenGroup() {
  const std::string gone = group_->Disconnected();
  const int64_t now_ms = clock_.NowMs();
  if (gone.empty() || upstream_ != Upstream::kJoined) {
    disconnected_ms_ = -1;
    return false;
  }
  if (disconnected_ms_ < 0) disconnected_ms_ = now_ms;
  if (now_ms - disconnected_ms_ < kRankGoneMs) return false;
  disconnected_ms_ = -1;
  leave_ = group_broken_ = true;
  leave_reason_ = LeaveReason();
  broken_group_id_ = group_->group_id();
  broken_status_ =
      WithReason(absl::NotFoundError(absl::StrCat(gone, " for ", kRankGoneMs,
                                                  " ms; start all ranks of the node again")),
                 "RANK_LOST");
  RefuseGroup(broken_status_, &broken_);
  return true;
}

// Under the mutex.
absl::Status AgentImpl::StartSession() {
  SessionOptions options;
  options.client.address = options_.coordinator;
  options.join = group_->NodeJoin();
  options.join.set_secret(state_->secret());
  options.join.set_client_version(kAgentVersion);
  options.listener = this;
  options.backoff_seed = RandomBackoffSeed();
  previous_sha256_ = options.join.last_update_sha256();
  acknowledged_ = options.join.last_round();
  joined_.reset();
  first_incarnation_ = 0;
  open_.clear();
  log_.emplace(options.join.last_round(), kKeptUpdateBytesMax);
  revised_.clear();
  state_parts_ = StateParts();
  left_reason_.clear();
  SetUpstreamWaiting(absl::StrCat("connecting to ", options_.coordinator));
  ISTHMUS_ASSIGN_OR_RETURN(session_, Session::Start(options));
  upstream_ = Upstream::kJoining;
  LogInfo("all ranks are there, joining", {{"ranks", absl::StrCat(options_.ranks)},
                                           {"coordinator", options_.coordinator},
                                           {"last_round", absl::StrCat(options.join.last_round())},
                                           {"attempt", absl::StrCat(options.join.attempt())}});
  return absl::OkStatus();
}

void AgentImpl::OnJoined(const v1::JoinRunResponse& joined) {
  Closings closings;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (session_ == nullptr || upstream_ == Upstream::kClosing) return;
    const bool other_attempt = joined_.has_value() && joined_->attempt() != joined.attempt();
    if (!joined_.has_value()) first_incarnation_ = joined.incarnation();
    joined_ = joined;
    joined_->set_node(options_.node);
    if (joined.has_spec()) TakeCodec(joined.spec().codec());
    upstream_ = Upstream::kJoined;
    SetUpstreamWaiting("");
    session_->SetCheckpointRound(group_->CheckpointedByAll());
    if (other_attempt) {
      // The ranks' contributions carry the old attempt; they learn the new one when they join.
      for (const auto& [round, open] : std::map<uint64_t, OpenRound>(open_))
        OpenBundle(open.opened);
      TakeWatches(WithReason(absl::FailedPreconditionError(
                                 absl::StrCat("node ", options_.node, " has a new attempt ",
                                              joined.attempt(), "; join again")),
                             kReasonNotJoined),
                  &closings);
    }
    TellWaiting();
    LogInfo("joined the run", {{"run", joined.spec().run()},
                               {"incarnation", absl::StrCat(joined.incarnation())},
                               {"attempt", absl::StrCat(joined.attempt())},
                               {"committed_round", absl::StrCat(joined.committed_round())}});
  }
  Close(closings);
}

void AgentImpl::OnWaiting(const std::string& sentence) {
  std::lock_guard<std::mutex> lock(mutex_);
  SetUpstreamWaiting(sentence);
}

// Under the mutex.
void AgentImpl::SetUpstreamWaiting(const std::string& sentence) {
  upstream_waiting_ = sentence;
  const std::string cause = WithoutTimes(sentence);
  if (cause == wait_cause_) return;
  wait_cause_ = cause;
  wait_since_ms_ = clock_.NowMs();
  wait_logged_ = false;
  if (cause.empty() && std::exchange(wait_told_, false)) LogInfo("goes on");
}

// Under the mutex. Logs a wait once, when it has lasted.
void AgentImpl::LogWaiting() {
  if (wait_cause_.empty() || wait_logged_) return;
  if (clock_.NowMs() - wait_since_ms_ < kSayWaitAfterMs) return;
  wait_logged_ = wait_told_ = true;
  LogInfo("waiting", {{"for", upstream_waiting_}});
}

void AgentImpl::OnEnded(const absl::Status& status) {
  Closings closings;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (session_ == nullptr || upstream_ == Upstream::kClosing) return;
    RefuseGroup(status, &closings);
  }
  Close(closings);
}

// The group's ranks are told `status`, now on their watches or when they ask to join.
void AgentImpl::RefuseGroup(const absl::Status& status, Closings* closings) {
  const std::string why(status.message());
  if (AsksForSnapshot(status)) {
    LogInfo("the trainers are to fetch a snapshot", {{"why", why}});
  } else {
    LogError("the trainer group is refused",
             {{"by", group_broken_ ? Name() : options_.coordinator}, {"why", why}});
  }
  // Without the retry delay: the agent has waited already, the ranks shall not do so once more.
  refusal_ = absl::Status(status.code(), status.message());
  if (const std::string reason = ReasonOf(status); !reason.empty()) {
    refusal_ = WithReason(refusal_, reason);
  }
  TakeWatches(refusal_, closings);
  upstream_ = Upstream::kClosing;
  changed_.notify_all();
}

// Ends the session without the mutex, which its last events may want.
void AgentImpl::CloseSession(std::unique_lock<std::mutex>* lock) {
  std::unique_ptr<Session> session = std::move(session_);
  const bool leave = std::exchange(leave_, false);
  const std::string reason = stopping_ ? stop_reason_ : leave_reason_;
  lock->unlock();
  if (session != nullptr && leave) session->Leave(reason);
  session.reset();
  lock->lock();
  upstream_ = Upstream::kNone;
  joined_.reset();
  open_.clear();
  log_.reset();
  wait_told_ = false;  // the group that waited does not go on
  SetUpstreamWaiting("");
  if (leave && exits_) ended_ = absl::OkStatus();
}

}  // namespace isthmus
