// The watch thread: joins, reads what happens, and comes back after a lost connection.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/limits.h"
#include "base/status_macros.h"
#include "transport/errors.h"
#include "transport/session_impl.h"

namespace isthmus {
namespace {

// A coordinator that starts again is not called by all of its nodes at the same moment, so that it
// takes no more than some 25 joins a second; and no node waits for long for the sake of it.
constexpr int64_t kReconnectSpreadPerNodeMs = 40;
constexpr int64_t kReconnectSpreadMaxMs = kBackoffMaxMs / 2;

}  // namespace

void SessionImpl::WatchLoop() {
  absl::Status last;
  while (const std::shared_ptr<Client> client = ClientForNextTry(last)) {
    bool joined = false;
    last = JoinAndWatch(client.get(), &joined);
    const bool is_fatal = IsFatal(last, joined);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      watching_ = false;
      admitted_ = false;
      if (finished_ || over()) break;
      if (is_fatal) {
        EndWith(last);
        break;
      }
    }
    Wait(last);
  }
  absl::Status fatal;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (stopping_ || leaving_ || finished_) return;
    fatal = fatal_;
  }
  notifier_.End([&fatal](SessionListener* listener) { listener->OnEnded(fatal); });
}

// Null when the session is over. After a lost connection a new one is made, so that only our own
// delays decide when to try again.
std::shared_ptr<Client> SessionImpl::ClientForNextTry(const absl::Status& last) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (over()) return nullptr;
  if (join_again_ || IsConnectionLost(last)) {
    client_->Cancel();
    auto client = Client::Make(client_options_);
    ISTHMUS_CHECK(client.ok());  // the address has been parsed before
    client_ = *std::move(client);
    join_again_ = false;
  }
  return client_;
}

absl::Status SessionImpl::JoinAndWatch(Client* client, bool* joined) {
  v1::JoinRunRequest request = options_.join;
  RoundHash after;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    after = acknowledged_;
    told_round_ = after.round;
    request.set_attempt(attempt_);
  }
  request.set_last_round(after.round);
  request.set_last_update_sha256(after.sha256);
  ISTHMUS_ASSIGN_OR_RETURN(const v1::JoinRunResponse response, client->JoinRun(request));
  *joined = true;
  other_owner_until_.reset();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (over()) return absl::CancelledError("the session ends");
    joined_ = response;
    attempt_ = response.attempt();
    admitted_ = true;
    changed_.notify_all();
  }
  notifier_.Call([&response](SessionListener* listener) { listener->OnJoined(response); });
  watch_began_ = Steady::now();
  reader_.StartWatch(after, is_node());
  return client->Watch(WatchRequest(response, after),
                       [this](v1::WatchUpdatesResponse& event) { return OnEvent(&event); });
}

v1::WatchUpdatesRequest SessionImpl::WatchRequest(const v1::JoinRunResponse& joined,
                                                  const RoundHash& after) {
  v1::WatchUpdatesRequest request;
  request.set_run(joined.spec().run());
  request.set_node(joined.node());
  request.set_role(options_.join.role());
  request.set_rank(options_.join.rank().rank());
  request.set_incarnation(joined.incarnation());
  request.set_last_round(after.round);
  request.set_last_update_sha256(after.sha256);
  *request.mutable_ranges() = options_.join.rank().ranges();
  return request;
}

absl::Status SessionImpl::OnEvent(v1::WatchUpdatesResponse* event) {
  // Also when it was opened before: the reader tells that only once.
  const uint64_t opened_round = event->opened().round();
  absl::StatusOr<UpdateReader::News> news = reader_.Take(event);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    // The reader gives nothing out twice, so what it has taken goes on to the listener also while
    // this connection is given up; a start is of this connection only.
    const bool is_moot = !news.ok() || news->start.has_value();
    if (over() || (join_again_ && is_moot)) {
      return absl::CancelledError("the connection is given up");
    }
    counters_.bytes_down = reader_.bytes();
    if (!news.ok()) {
      EndWith(news.status());
      return news.status();
    }
    if (news->start.has_value()) {
      watching_ = true;
      ++counters_.connects;
      outbox_.WatchStarted(*news->start, joined_.incarnation());
      changed_.notify_all();
    }
    if (opened_round != 0) {
      outbox_.Opened(opened_round);
      changed_.notify_all();
    }
    if (news->update != nullptr) outbox_.Settle(news->update->record.round());
    if (news->finished.has_value()) finished_ = true;
  }
  if (news->start.has_value()) notifier_.Waiting(SessionNotifier::kConnection, "");
  if (news->opened.has_value()) {
    notifier_.Call([&](SessionListener* listener) { listener->OnOpened(*news->opened); });
  }
  if (news->revised.has_value()) {
    notifier_.Call([&](SessionListener* listener) { listener->OnRevised(*news->revised); });
  }
  if (news->update != nullptr) {
    watch_backoff_.Reset();
    notifier_.Waiting(SessionNotifier::kSubmission, "");
    notifier_.Waiting(SessionNotifier::kServer, "");
    notifier_.Call([&](SessionListener* listener) { listener->OnUpdate(news->update); });
  }
  if (news->finished.has_value()) {
    // The watch stays open until we leave: to a server its end would look like a death.
    notifier_.End([&](SessionListener* listener) { listener->OnFinished(*news->finished); });
  }
  return absl::OkStatus();
}

bool SessionImpl::IsFatal(const absl::Status& status, bool joined) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (join_again_) return false;
  }
  if (IsRetryable(status)) return false;
  if (joined) {
    return status.code() != absl::StatusCode::kFailedPrecondition && !AsksToJoinAgain(status);
  }
  const int64_t retry_ms = RetryAfterMsOf(status);
  if (status.code() != absl::StatusCode::kAlreadyExists || retry_ms < 0) return true;
  // Another owner of our name. If it is dead its lease ends in the time that we were told first; a
  // live one renews it for ever.
  const Steady::time_point now = Steady::now();
  if (!other_owner_until_.has_value()) other_owner_until_ = now + Milliseconds(2 * retry_ms);
  return now >= *other_owner_until_;
}

// Before the next try, telling the listener why.
void SessionImpl::Wait(const absl::Status& why) {
  if (watch_began_.has_value() && Steady::now() - *watch_began_ >= Milliseconds(kBackoffMaxMs)) {
    watch_backoff_.Reset();  // the connection was good for a while
  }
  watch_began_.reset();
  const int64_t retry_ms = RetryAfterMsOf(why);
  if (retry_ms >= 0) watch_backoff_.Reset();  // the server lives and says when to come back
  Lock lock(mutex_);
  const bool join_again = join_again_;
  const int64_t nodes = joined_.spec().nodes_size();
  lock.unlock();
  const int64_t spread_ms = is_node() && !join_again
                                ? std::min(kReconnectSpreadPerNodeMs * nodes, kReconnectSpreadMaxMs)
                                : 0;
  const Milliseconds delay(watch_backoff_.NextDelayMs(std::max<int64_t>(retry_ms, 0), spread_ms));
  notifier_.Waiting(SessionNotifier::kConnection,
                    join_again ? "joining again, as the server asks for it" : Sentence(why));
  lock.lock();
  changed_.wait_for(lock, delay, [this] { return over(); });
}

}  // namespace isthmus
