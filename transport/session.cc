#include "transport/session.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "transport/errors.h"
#include "transport/session_impl.h"

namespace isthmus {

bool IsConnectionLost(const absl::Status& status) {
  return (status.code() == absl::StatusCode::kUnavailable ||
          status.code() == absl::StatusCode::kDeadlineExceeded) &&
         ReasonOf(status).empty() && RetryAfterMsOf(status) < 0;
}

SessionImpl::SessionImpl(const SessionOptions& options)
    : options_(options),
      client_options_(options.client),
      notifier_(options.listener),
      reader_({options.join.last_round(), options.join.last_update_sha256()}),
      watch_backoff_(options.backoff_seed),
      send_backoff_(options.backoff_seed + 1),
      acknowledged_({options.join.last_round(), options.join.last_update_sha256()}),
      told_round_(options.join.last_round()),
      attempt_(options.join.attempt()) {
  client_options_.piece_bytes_sent = &bytes_up_;
}

absl::Status SessionImpl::Start() {
  ISTHMUS_ASSIGN_OR_RETURN(client_, Client::Make(client_options_));
  threads_.emplace_back([this] { WatchLoop(); });
  threads_.emplace_back([this] { SendLoop(); });
  if (is_node()) threads_.emplace_back([this] { BeatLoop(); });
  return absl::OkStatus();
}

void SessionImpl::Submit(std::shared_ptr<const Submission> submission,
                         std::function<void(const absl::Status&)> refused) {
  std::lock_guard<std::mutex> lock(mutex_);
  outbox_.Put(std::move(submission), std::move(refused));
  changed_.notify_all();
}

void SessionImpl::Acknowledge(uint64_t round, const std::string& update_sha256) {
  std::lock_guard<std::mutex> lock(mutex_);
  ISTHMUS_CHECK(round >= acknowledged_.round);
  acknowledged_ = {round, update_sha256};
  changed_.notify_all();
}

void SessionImpl::AddCheck(uint64_t round, const std::string& state_sha256) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = checks_.find(round);
  if (found != checks_.end() && found->second == state_sha256) return;
  checks_[round] = state_sha256;
  if (checks_.size() > kStateReportsMax) checks_.erase(checks_.begin());
  state_untold_ = true;
  changed_.notify_all();
}

void SessionImpl::SetStateReport(uint64_t round, const std::string& sha256) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (state_.round == round && state_.sha256 == sha256) return;
  state_ = {round, sha256};
  state_untold_ = true;
  changed_.notify_all();
}

void SessionImpl::SetCheckpointRound(uint64_t round) {
  std::lock_guard<std::mutex> lock(mutex_);
  checkpoint_round_ = round;
}

void SessionImpl::SetWaitingFor(const std::string& sentence) {
  std::lock_guard<std::mutex> lock(mutex_);
  waiting_for_ = OneLine(sentence, kReasonBytesMax);
}

SessionCounters SessionImpl::counters() const {
  std::lock_guard<std::mutex> lock(mutex_);
  SessionCounters counters = counters_;
  counters.bytes_up = bytes_up_;
  counters.resends = outbox_.resends();
  return counters;
}

void SessionImpl::Leave(const std::string& reason) {
  std::shared_ptr<Client> client;
  v1::HeartbeatRequest last;
  v1::LeaveRunRequest request;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    leaving_ = true;  // the server will end the watch, and nothing shall join again
    changed_.notify_all();
    if (admitted_) client = client_;
    last = MakeHeartbeat();
    request.set_run(joined_.spec().run());
    request.set_node(joined_.node());
    request.set_role(options_.join.role());
    request.set_rank(options_.join.rank().rank());
    request.set_incarnation(joined_.incarnation());
    request.set_reason(OneLine(reason, kReasonBytesMax));
  }
  if (client != nullptr) {
    // Operators shall see that the node had the last update too. Leaving itself says no round.
    if (options_.join.role() == v1::ROLE_NODE) (void)client->Heartbeat(last);
    const auto left = client->LeaveRun(request);
    if (!left.ok()) LogWarning("could not leave", {{"why", std::string(left.status().message())}});
  }
  Stop();
}

void SessionImpl::Stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
    Disconnect();
  }
  notifier_.Stop();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

std::string SessionImpl::Sentence(const absl::Status& why) const {
  if (!IsConnectionLost(why)) return std::string(why.message());
  return absl::StrCat(is_node() ? "the coordinator at " : "the agent at ", options_.client.address,
                      ": ", why.message());
}

void SessionImpl::Disconnect() {
  watching_ = false;
  admitted_ = false;
  if (client_ != nullptr) client_->Cancel();
  changed_.notify_all();
}

void SessionImpl::EndWith(const absl::Status& status) {
  if (!fatal_.ok()) return;
  fatal_ = status;
  Disconnect();
}

absl::StatusOr<std::unique_ptr<Session>> Session::Start(const SessionOptions& options) {
  ISTHMUS_CHECK(options.listener != nullptr);
  auto session = std::make_unique<SessionImpl>(options);
  ISTHMUS_RETURN_IF_ERROR(session->Start());
  return std::unique_ptr<Session>(std::move(session));
}

}  // namespace isthmus
