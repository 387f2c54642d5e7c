#include "worker/rank_client.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "spec/piece.h"
#include "transport/backoff.h"
#include "transport/errors.h"
#include "worker/rank_reports.h"
#include "worker/snapshot_fetch.h"
#include "worker/snapshot_uploader.h"
#include "worker/untaken.h"

namespace isthmus {
namespace {

// How often `stop` is asked while waiting.
constexpr std::chrono::milliseconds kStopPoll(100);
// A wait for a round that lasts longer is explained by the agent, and again after each such time.
constexpr int64_t kAskWhyMs = 3000;
// What was applied is told with the next part of a contribution, or after this time without one: a
// node that catches up is a member only when its agent knows.
constexpr int64_t kTellMs = 50;
// A rank is near its agent and may ask often; the agent answers without work.
constexpr int kSpecBackoffMaxMs = 1000;

class RankClientImpl final : public RankClient, private SessionListener {
 public:
  RankClientImpl(const RankClientOptions& options, std::unique_ptr<Client> client)
      : options_(options), client_(std::move(client)) {}
  ~RankClientImpl() override { session_.reset(); }

  absl::StatusOr<v1::JoinRunResponse> FetchSpec() override;
  absl::StatusOr<v1::JoinRunResponse> Join(const v1::JoinRunRequest& request) override;
  absl::StatusOr<std::optional<v1::RoundOpened>> WaitOpened(const ApplyUpdate& apply,
                                                            uint64_t own_through) override;
  absl::StatusOr<std::optional<Next>> WaitNext(uint64_t round) override;
  void Submit(const v1::RoundOpened& opened, std::vector<std::string> pieces,
              const Work& work) override;
  void Abstain(const v1::RoundOpened& opened, const std::string& reason) override;
  absl::StatusOr<Update> WaitUpdate() override;
  bool UpdateReady() override {
    std::lock_guard<std::mutex> lock(mutex_);
    return ended_.has_value() || !updates_.empty() || finished_round_.has_value();
  }
  std::optional<v1::SpecRevised> TakeRevised(uint64_t round) override {
    std::lock_guard<std::mutex> lock(mutex_);
    return revised_.Take(round);
  }
  void Acknowledge(const Update& update) override;
  void Checkpointed(uint64_t round) override;
  void ReportState(uint64_t round, const std::string& sha256) override;
  void ReportParts(std::vector<v1::StatePart> parts) override;
  void UploadSnapshot(std::shared_ptr<const SnapshotParts> parts) override;
  void FinishUpload() override;
  absl::StatusOr<v1::SnapshotFacts> FetchSnapshot(
      std::optional<uint64_t> round, const std::vector<SectionRange>& ranges,
      const std::function<absl::Status(const v1::SnapshotPiece&)>& on_piece) override;
  void Leave(const std::string& reason) override;
  SessionCounters counters() const override {
    return session_ == nullptr ? SessionCounters() : session_->counters();
  }

 private:
  static constexpr int64_t kNoLimit = -1;

  void OnJoined(const v1::JoinRunResponse& joined) override;
  void OnOpened(const v1::RoundOpened& opened) override;
  void OnRevised(const v1::SpecRevised& revised) override;
  void OnUpdate(std::shared_ptr<const CommittedUpdate> update) override;
  void OnFinished(uint64_t last_round) override;
  void OnEnded(const absl::Status& status) override;
  void OnWaiting(const std::string& sentence) override;

  absl::Status Wait(std::unique_lock<std::mutex>* lock, const std::function<bool()>& ready,
                    int64_t timeout_ms);
  void Tell(const std::string& sentence);
  std::string AskWhy();
  Update TakeUpdate();
  void Send(const v1::RoundOpened& opened, std::shared_ptr<Submission> submission);
  absl::Status NotJoined() const { return absl::FailedPreconditionError("call Join first"); }

  const RankClientOptions options_;
  const MonotonicClock clock_;
  const std::unique_ptr<Client> client_;
  std::string told_;  // caller's thread only
  std::vector<v1::ChunkRange> ranges_;
  uint32_t rank_ = 0;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::string waiting_;
  std::optional<v1::JoinRunResponse> joined_;
  UntakenRounds opened_;
  UntakenUpdates updates_;
  UntakenRevisions revised_;
  std::optional<uint64_t> finished_round_;
  RankReports reports_;
  std::optional<absl::Status> ended_;

  std::unique_ptr<Session> session_;  // its threads end before the rest goes
  std::unique_ptr<SnapshotUploader> uploader_;
};

void RankClientImpl::Tell(const std::string& sentence) {
  if (sentence == told_) return;
  told_ = sentence;
  if (options_.on_waiting) options_.on_waiting(sentence);
}

// Waits under the lock until ready() or the session has ended; gives it up while it asks the
// caller's functions.
absl::Status RankClientImpl::Wait(std::unique_lock<std::mutex>* lock,
                                  const std::function<bool()>& ready, int64_t timeout_ms) {
  const int64_t start_ms = clock_.NowMs();
  int64_t ask_ms = start_ms + (reports_.untold() ? kTellMs : kAskWhyMs);
  std::string why;
  while (true) {
    if (ended_.has_value()) return *ended_;
    if (ready()) break;
    std::string waiting = waiting_;
    lock->unlock();
    if (waiting.empty() && clock_.NowMs() >= ask_ms) {
      why = AskWhy();
      ask_ms = clock_.NowMs() + kAskWhyMs;
    }
    if (waiting.empty()) waiting = why;
    Tell(waiting);
    const bool stop = options_.stop && options_.stop();
    lock->lock();
    if (stop) return absl::CancelledError(absl::StrCat("stopped while waiting: ", waiting));
    if (timeout_ms != kNoLimit && clock_.NowMs() - start_ms >= timeout_ms) {
      return absl::DeadlineExceededError(absl::StrCat("waited ", timeout_ms, " ms: ", waiting));
    }
    // What came while the lock was free has been signalled already.
    if (ended_.has_value() || ready()) continue;
    changed_.wait_for(*lock, kStopPoll);
  }
  lock->unlock();
  Tell("");
  lock->lock();
  return absl::OkStatus();
}

// What the agent waits for; empty when it does not say. Tells it what it does not know.
std::string RankClientImpl::AskWhy() {
  while (true) {
    v1::HeartbeatRequest request;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!joined_.has_value()) return "";
      request.set_run(joined_->spec().run());
      request.set_node(joined_->node());
      request.set_incarnation(joined_->incarnation());
      request.set_role(v1::ROLE_RANK);
      request.set_rank(rank_);
      reports_.Fill(&request);
    }
    const auto answer = client_->Heartbeat(request);
    if (!answer.ok()) return "";
    std::lock_guard<std::mutex> lock(mutex_);
    reports_.Told(request);
    if (!reports_.has_part()) return answer->waiting_for();
  }
}

absl::StatusOr<v1::JoinRunResponse> RankClientImpl::FetchSpec() {
  v1::JoinRunRequest request;
  request.set_role(v1::ROLE_RANK);
  Backoff backoff(RandomBackoffSeed(), kBackoffFirstMs, kSpecBackoffMaxMs);
  const int64_t start_ms = clock_.NowMs();
  while (true) {
    absl::StatusOr<v1::JoinRunResponse> spec = client_->JoinRun(request);
    if (spec.ok() || !IsRetryable(spec.status())) {
      Tell("");
      return spec;
    }
    const int64_t left_ms = start_ms + options_.join_timeout_ms - clock_.NowMs();
    if (left_ms <= 0) {
      return absl::DeadlineExceededError(absl::StrCat(
          "waited ", options_.join_timeout_ms, " ms for the spec: ", spec.status().message()));
    }
    std::unique_lock<std::mutex> lock(mutex_);
    // The agent's own words name it; those of a lost connection do not.
    const bool answered = !ReasonOf(spec.status()).empty();
    waiting_ = absl::StrCat(answered ? "" : absl::StrCat("the agent at ", options_.agent, ": "),
                            spec.status().message());
    const int64_t delay_ms =
        std::min(left_ms, backoff.NextDelayMs(std::max<int64_t>(RetryAfterMsOf(spec.status()), 0)));
    const int64_t until_ms = clock_.NowMs() + delay_ms;
    ISTHMUS_RETURN_IF_ERROR(Wait(
        &lock, [&] { return clock_.NowMs() >= until_ms; }, kNoLimit));
  }
}

absl::StatusOr<v1::JoinRunResponse> RankClientImpl::Join(const v1::JoinRunRequest& request) {
  if (session_ != nullptr) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (!ended_.has_value()) return absl::FailedPreconditionError("Join was called before");
    lock.unlock();
    session_.reset();  // without the lock, which its last events may want
    lock.lock();
    joined_.reset();
    opened_.Clear();
    updates_.Clear();
    revised_.Clear();
  }
  SessionOptions options;
  options.client.address = options_.agent;
  options.join = request;
  options.join.set_role(v1::ROLE_RANK);
  options.listener = this;
  options.backoff_seed = RandomBackoffSeed();
  rank_ = request.rank().rank();
  ranges_.assign(request.rank().ranges().begin(), request.rank().ranges().end());
  {
    std::lock_guard<std::mutex> lock(mutex_);
    waiting_ = absl::StrCat("connecting to the agent at ", options_.agent);
    reports_.Begin(request.last_round());
    ended_.reset();
  }
  ISTHMUS_ASSIGN_OR_RETURN(session_, Session::Start(options));
  absl::Status status;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    status = Wait(
        &lock, [this] { return joined_.has_value(); }, options_.join_timeout_ms);
    if (status.ok()) return *joined_;
  }
  session_.reset();  // without the lock, which its last events may want
  return status;
}

absl::StatusOr<std::optional<v1::RoundOpened>> RankClientImpl::WaitOpened(const ApplyUpdate& apply,
                                                                          uint64_t own_through) {
  using Opened = std::optional<v1::RoundOpened>;
  if (session_ == nullptr) return NotJoined();
  while (true) {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto behind = [&] {
      if (apply == nullptr || updates_.empty()) return false;
      return opened_.empty() || updates_.front().record.round() <= opened_.front().base_round();
    };
    ISTHMUS_RETURN_IF_ERROR(Wait(
        &lock, [&] { return behind() || !opened_.empty() || finished_round_.has_value(); },
        kNoLimit));
    if (!behind()) return opened_.empty() ? Opened() : Opened(opened_.Pop());
    if (opened_.empty() && updates_.front().record.round() <= own_through) {
      return Opened(v1::RoundOpened());
    }
    const Update update = TakeUpdate();
    lock.unlock();
    ISTHMUS_RETURN_IF_ERROR(apply(update));
    Acknowledge(update);
  }
}

absl::StatusOr<std::optional<RankClient::Next>> RankClientImpl::WaitNext(uint64_t round) {
  if (session_ == nullptr) return NotJoined();
  std::unique_lock<std::mutex> lock(mutex_);
  const auto is_known = [&] { return updates_.Find(round) != nullptr || opened_.Has(round); };
  ISTHMUS_RETURN_IF_ERROR(Wait(
      &lock, [&] { return is_known() || finished_round_.has_value(); }, kNoLimit));
  if (const CommittedUpdate* const update = updates_.Find(round); update != nullptr) {
    return std::optional<Next>({OpenedOf(update->record), /*closed=*/true});
  }
  if (!opened_.Has(round)) return std::optional<Next>();
  return std::optional<Next>({opened_.Take(round), /*closed=*/false});
}

absl::StatusOr<RankClient::Update> RankClientImpl::WaitUpdate() {
  if (session_ == nullptr) return NotJoined();
  std::unique_lock<std::mutex> lock(mutex_);
  ISTHMUS_RETURN_IF_ERROR(Wait(
      &lock, [this] { return !updates_.empty() || finished_round_.has_value(); }, kNoLimit));
  if (updates_.empty()) {
    return absl::OutOfRangeError(
        absl::StrCat("the run is finished; its last round was ", *finished_round_));
  }
  return TakeUpdate();
}

// Under the mutex.
RankClient::Update RankClientImpl::TakeUpdate() {
  Update update;
  update.committed = updates_.Pop();
  update.included = update.committed->own_included;
  return update;
}

void RankClientImpl::Send(const v1::RoundOpened& opened, std::shared_ptr<Submission> submission) {
  submission->round = opened.round();
  submission->base_round = opened.base_round();
  submission->ranges = ranges_;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!joined_.has_value()) return;
    submission->attempt = joined_->attempt();
    submission->codec = ContributionLayout(joined_->spec().codec());
    reports_.ToldAcknowledged();
  }
  const uint64_t round = opened.round();
  session_->Submit(std::move(submission), [round](const absl::Status& status) {
    LogWarning("the agent refused this rank's part; the round goes on without it",
               {{"round", absl::StrCat(round)}, {"why", std::string(status.message())}});
  });
}

void RankClientImpl::Submit(const v1::RoundOpened& opened, std::vector<std::string> pieces,
                            const Work& work) {
  auto submission = std::make_shared<Submission>();
  submission->pieces = std::move(pieces);
  submission->work = work;
  submission->lr_bits = opened.lr_bits();
  Send(opened, std::move(submission));
}

void RankClientImpl::Abstain(const v1::RoundOpened& opened, const std::string& reason) {
  auto submission = std::make_shared<Submission>();
  submission->abstain_reason = reason.empty() ? "no reason given" : reason;
  Send(opened, std::move(submission));
}

void RankClientImpl::Acknowledge(const Update& update) {
  if (session_ == nullptr) return;
  session_->Acknowledge(update.committed->record.round(), update.committed->record.sha256());
  const int64_t now_ms = clock_.NowMs();
  bool is_due = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    is_due = reports_.Acknowledge(update.committed->record.round(), now_ms, kTellMs);
  }
  // A rank that catches up with short rounds finds the next update there whenever it looks: no wait
  // of it lasts long enough to tell anything.
  if (is_due) AskWhy();
}

void RankClientImpl::Checkpointed(uint64_t round) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    reports_.Checkpointed(round);
  }
  AskWhy();  // a short call to this machine's agent; what fails is told in the next wait
}

void RankClientImpl::ReportState(uint64_t round, const std::string& sha256) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    reports_.State(round, sha256);
  }
  AskWhy();
}

void RankClientImpl::ReportParts(std::vector<v1::StatePart> parts) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    reports_.Parts(std::move(parts));
  }
  AskWhy();
}

void RankClientImpl::UploadSnapshot(std::shared_ptr<const SnapshotParts> parts) {
  uploader_.reset();
  SnapshotUploader::Options options;
  options.agent = options_.agent;
  options.rank = rank_;
  options.backoff_seed = RandomBackoffSeed();
  options.incarnation = [this] {
    std::lock_guard<std::mutex> lock(mutex_);
    return joined_.has_value() ? joined_->incarnation() : 0;
  };
  auto started = SnapshotUploader::Start(options, std::move(parts));
  ISTHMUS_CHECK(started.ok());  // the address has been parsed before
  uploader_ = *std::move(started);
}

void RankClientImpl::FinishUpload() {
  if (uploader_ == nullptr) return;
  Tell("this rank's part of the last snapshot goes up");
  uploader_->Wait(options_.stop);
  Tell("");
}

absl::StatusOr<v1::SnapshotFacts> RankClientImpl::FetchSnapshot(
    std::optional<uint64_t> round, const std::vector<SectionRange>& ranges,
    const std::function<absl::Status(const v1::SnapshotPiece&)>& on_piece) {
  SnapshotFetch fetch(client_.get(), round, ranges, on_piece);
  Backoff backoff(RandomBackoffSeed());
  while (true) {
    const absl::Status status = fetch.Try([this](const std::string& sentence) { Tell(sentence); });
    const bool stop = options_.stop && options_.stop();
    if (!stop && status.ok()) {
      Tell("");
      return fetch.facts();
    }
    if (stop) return absl::CancelledError("stopped while fetching a snapshot");
    if (!IsRetryable(status)) return status;
    const int64_t until_ms =
        clock_.NowMs() + backoff.NextDelayMs(std::max<int64_t>(RetryAfterMsOf(status), 0));
    Tell(std::string(status.message()));
    std::unique_lock<std::mutex> lock(mutex_);
    while (clock_.NowMs() < until_ms) {
      changed_.wait_for(lock, kStopPoll);
      lock.unlock();
      if (options_.stop && options_.stop()) {
        return absl::CancelledError(absl::StrCat("stopped while waiting: ", status.message()));
      }
      lock.lock();
    }
  }
}

void RankClientImpl::Leave(const std::string& reason) {
  uploader_.reset();
  if (session_ != nullptr) session_->Leave(reason);
}

void RankClientImpl::OnJoined(const v1::JoinRunResponse& joined) {
  std::lock_guard<std::mutex> lock(mutex_);
  joined_ = joined;
  reports_.Rejoined();
  waiting_.clear();
  changed_.notify_all();
}

void RankClientImpl::OnOpened(const v1::RoundOpened& opened) {
  std::lock_guard<std::mutex> lock(mutex_);
  opened_.Push(opened);
  changed_.notify_all();
}

void RankClientImpl::OnRevised(const v1::SpecRevised& revised) {
  std::lock_guard<std::mutex> lock(mutex_);
  revised_.Push(revised);
}

void RankClientImpl::OnUpdate(std::shared_ptr<const CommittedUpdate> update) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (ended_.has_value()) return;
  // Nobody should compute for a round that has closed.
  opened_.Committed(update->record.round());
  updates_.Push(std::move(update));
  if (updates_.bytes() > kKeptUpdateBytesMax) {
    ended_ = absl::ResourceExhaustedError(absl::StrCat(
        "this rank has ", updates_.size(), " updates with more than ", kKeptUpdateBytesMax,
        " bytes still to apply; start its node from a newer checkpoint"));
    updates_.Clear();
  }
  changed_.notify_all();
}

void RankClientImpl::OnFinished(uint64_t last_round) {
  std::lock_guard<std::mutex> lock(mutex_);
  finished_round_ = last_round;
  changed_.notify_all();
}

void RankClientImpl::OnEnded(const absl::Status& status) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!ended_.has_value()) ended_ = status;
  changed_.notify_all();
}

void RankClientImpl::OnWaiting(const std::string& sentence) {
  std::lock_guard<std::mutex> lock(mutex_);
  waiting_ = sentence;
  changed_.notify_all();
}

}  // namespace

absl::StatusOr<std::unique_ptr<RankClient>> RankClient::Make(const RankClientOptions& options) {
  ClientOptions client_options;
  client_options.address = options.agent;
  ISTHMUS_ASSIGN_OR_RETURN(auto client, Client::Make(client_options));
  return std::make_unique<RankClientImpl>(options, std::move(client));
}

}  // namespace isthmus
