#include "tests/sim/session.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "transport/errors.h"

namespace isthmus::sim {
namespace {

// As session_send.cc has it.
constexpr int64_t kTellMs = 50;

}  // namespace

SimSession::SimSession(Options options)
    : options_(std::move(options)),
      world_(&options_.scene->world),
      watch_backoff_(world_->random().Next()),
      send_backoff_(world_->random().Next()),
      reader_({options_.join.last_round(), options_.join.last_update_sha256()}) {
  state_->attempt = options_.join.attempt();
  state_->acknowledged = {options_.join.last_round(), options_.join.last_update_sha256()};
  state_->told_round = options_.join.last_round();
  Connect();
}

SimSession::~SimSession() {
  state_->over = true;
  options_.link->GiveUp(state_->watch);
}

void SimSession::After(int64_t delay_ms, std::function<void()> action) {
  options_.process->After(delay_ms, [state = state_, action = std::move(action)] {
    if (!state->over) action();
  });
}

void SimSession::Connect() {
  ++state_->connection;
  state_->join_again = false;
  v1::JoinRunRequest request = options_.join;
  const RoundHash after = state_->acknowledged;
  state_->told_round = after.round;
  request.set_attempt(state_->attempt);
  request.set_last_round(after.round);
  request.set_last_update_sha256(after.sha256);
  options_.link->Call<v1::JoinRunResponse>(
      options_.process, [request](Coordinator& host) { return host.JoinRun(request); },
      [this, state = state_, after,
       connection = state_->connection](absl::StatusOr<v1::JoinRunResponse> response) {
        if (!state->over && connection == state->connection) Joined(after, response);
      });
}

void SimSession::Joined(const RoundHash& after,
                        const absl::StatusOr<v1::JoinRunResponse>& response) {
  const uint64_t connection = state_->connection;
  if (!response.ok()) return WatchEnded(connection, response.status(), /*joined=*/false);
  state_->other_owner_until_ms.reset();
  state_->joined = *response;
  state_->attempt = response->attempt();
  state_->admitted = true;
  options_.listener->OnJoined(*response);
  ScheduleBeat(response->incarnation());
  reader_.StartWatch(after, /*from_coordinator=*/true);
  v1::WatchUpdatesRequest request;
  request.set_run(response->spec().run());
  request.set_node(response->node());
  request.set_role(v1::ROLE_NODE);
  request.set_incarnation(response->incarnation());
  request.set_last_round(after.round);
  request.set_last_update_sha256(after.sha256);
  state_->watch = options_.link->Watch(
      options_.process, request,
      [this, state = state_, connection](const WatchEvent& event) {
        if (!state->over && connection == state->connection) Take(connection, event);
      },
      [this, state = state_, connection](const absl::Status& status) {
        if (!state->over && connection == state->connection) WatchEnded(connection, status, true);
      });
}

void SimSession::Take(uint64_t connection, const WatchEvent& event) {
  if (state_->join_again) return;
  v1::WatchUpdatesResponse copy = *event;
  absl::StatusOr<UpdateReader::News> news = reader_.Take(&copy);
  if (!news.ok()) return EndWith(news.status());
  if (news->start.has_value()) {
    state_->watching = true;
    outbox_.WatchStarted(*news->start, state_->joined.incarnation());
    Send();
  }
  const std::shared_ptr<State> state = state_;
  if (event->has_opened()) {
    outbox_.Opened(event->opened().round());
    Send();
  }
  if (news->update != nullptr) outbox_.Settle(news->update->record.round());
  if (news->finished.has_value()) state->finished = true;
  if (news->opened.has_value()) options_.listener->OnOpened(*news->opened);
  if (news->update != nullptr) {
    watch_backoff_.Reset();
    options_.listener->OnUpdate(news->update);
  }
  if (state->over || connection != state->connection) return;
  if (news->finished.has_value()) options_.listener->OnFinished(*news->finished);
}

void SimSession::WatchEnded(uint64_t connection, const absl::Status& status, bool joined) {
  if (connection != state_->connection) return;
  world_->Trace(options_.process->name(),
                absl::StrCat(joined ? "watch ended: " : "join failed: ", status.message()));
  state_->watching = false;
  state_->admitted = false;
  if (state_->finished) return;
  if (IsFatal(status, joined)) return EndWith(status);
  ++state_->connection;  // of the pause between two tries
  const int64_t retry_ms = RetryAfterMsOf(status);
  if (retry_ms >= 0) watch_backoff_.Reset();
  After(watch_backoff_.NextDelayMs(std::max<int64_t>(retry_ms, 0)), [this] { Connect(); });
}

bool SimSession::IsFatal(const absl::Status& status, bool joined) {
  if (state_->join_again || IsRetryable(status)) return false;
  if (joined) return status.code() != absl::StatusCode::kFailedPrecondition;
  const int64_t retry_ms = RetryAfterMsOf(status);
  if (status.code() != absl::StatusCode::kAlreadyExists || retry_ms < 0) return true;
  const int64_t now_ms = world_->NowMs();
  if (!state_->other_owner_until_ms.has_value()) {
    state_->other_owner_until_ms = now_ms + 2 * retry_ms;
  }
  return now_ms >= *state_->other_owner_until_ms;
}

// The server asked to join again: the watch ends, from our side.
void SimSession::Disconnect() {
  options_.link->GiveUp(state_->watch);
  After(0, [this, connection = state_->connection] {
    WatchEnded(connection, absl::CancelledError("joining again"), /*joined=*/true);
  });
}

void SimSession::EndWith(const absl::Status& status) {
  state_->over = true;
  options_.link->GiveUp(state_->watch);
  options_.listener->OnEnded(status);
}

void SimSession::Submit(std::shared_ptr<const Submission> submission, Outbox::Refused refused) {
  outbox_.Put(std::move(submission), std::move(refused));
  Send();
}

void SimSession::Send() {
  if (state_->sending || !state_->watching) return;
  const std::optional<Outbox::Ticket> ticket = outbox_.Next();
  if (!ticket.has_value()) return;
  state_->sending = true;
  const v1::SubmitHeader header = Header(*ticket->submission);
  options_.link->Submit(
      options_.process, header, ticket->submission,
      [this, state = state_, ticket = *ticket, header](const Link::Receipt& receipt) {
        if (state->over) return;
        const absl::Status status = receipt.status();
        world_->Trace(options_.process->name(),
                      absl::StrCat("submit ", header.round(), ": ",
                                   status.ok() ? "receipt" : status.message()));
        if (receipt.ok()) options_.receipt(*receipt);
        Outbox::Refused refused;
        const int64_t delay_ms = Conclude(ticket, header.incarnation(), status, &refused);
        if (state->over) return;
        if (refused) refused(status);
        After(delay_ms, [this, state] {
          state->sending = false;
          Send();
        });
      });
}

v1::SubmitHeader SimSession::Header(const Submission& submission) {
  v1::SubmitHeader header;
  header.set_run(state_->joined.spec().run());
  header.set_node(state_->joined.node());
  header.set_role(v1::ROLE_NODE);
  header.set_round(submission.round);
  header.set_base_round(submission.base_round);
  header.set_incarnation(state_->joined.incarnation());
  header.set_attempt(submission.attempt);
  for (const v1::ChunkRange& range : submission.ranges) *header.add_ranges() = range;
  header.set_codec(ContributionLayout(state_->joined.spec().codec()));
  header.set_tokens(submission.work.tokens);
  header.set_steps(submission.work.steps);
  header.set_digest(submission.digest);
  uint64_t bytes = 0;
  for (const std::string& piece : submission.pieces) bytes += piece.size();
  header.set_payload_bytes(bytes);
  header.set_acknowledged_round(state_->acknowledged.round);
  state_->told_round = state_->acknowledged.round;
  header.set_abstain_reason(submission.abstain_reason);
  return header;
}

int64_t SimSession::Conclude(const Outbox::Ticket& ticket, uint64_t incarnation,
                             const absl::Status& status, Outbox::Refused* refused) {
  const bool is_current = state_->admitted && incarnation == state_->joined.incarnation();
  Outbox::Verdict verdict = outbox_.Conclude(ticket, incarnation, is_current, status);
  *refused = std::move(verdict.refused);
  switch (verdict.next) {
    case Outbox::Verdict::Next::kGoOn:
      if (status.ok()) send_backoff_.Reset();
      return 0;
    case Outbox::Verdict::Next::kJoinAgain:
      state_->join_again = true;
      state_->watching = false;
      Disconnect();
      return 0;
    case Outbox::Verdict::Next::kEnd:
      EndWith(status);
      return 0;
    case Outbox::Verdict::Next::kTryAgainLater:
      break;
  }
  return send_backoff_.NextDelayMs(std::max<int64_t>(RetryAfterMsOf(status), 0));
}

void SimSession::Acknowledge(uint64_t round, const std::string& sha256) {
  state_->acknowledged = {round, sha256};
  TellSoon();
}

void SimSession::AddCheck(uint64_t round, const std::string& sha256) {
  state_->checks[round] = sha256;
  if (state_->checks.size() > kStateReportsMax) state_->checks.erase(state_->checks.begin());
  state_->checks_untold = true;
  TellSoon();
}

void SimSession::TellSoon() {
  After(kTellMs, [this] {
    const bool untold = state_->acknowledged.round > state_->told_round || state_->checks_untold;
    if (state_->admitted && untold) Beat();
  });
}

void SimSession::ScheduleBeat(uint64_t incarnation) {
  After(state_->joined.spec().timing().heartbeat_ms(), [this, incarnation] {
    if (!state_->admitted || state_->joined.incarnation() != incarnation) return;
    Beat();
    ScheduleBeat(incarnation);
  });
}

void SimSession::Beat() {
  v1::HeartbeatRequest request;
  request.set_run(state_->joined.spec().run());
  request.set_node(state_->joined.node());
  request.set_role(v1::ROLE_NODE);
  request.set_incarnation(state_->joined.incarnation());
  request.set_acknowledged_round(state_->acknowledged.round);
  request.set_checkpoint_round(state_->checkpoint_round);
  request.set_state_round(state_->state.round);
  request.set_state_sha256(state_->state.sha256);
  for (const auto& [round, sha256] : state_->checks) {
    v1::StateReport* const check = request.add_checks();
    check->set_round(round);
    check->set_sha256(sha256);
  }
  state_->checks_untold = false;
  state_->told_round = state_->acknowledged.round;
  options_.link->Call<v1::HeartbeatResponse>(
      options_.process, [request](Coordinator& host) { return host.Heartbeat(request); },
      [this, state = state_,
       incarnation = request.incarnation()](const absl::StatusOr<v1::HeartbeatResponse>& answer) {
        if (state->over || answer.ok()) return;
        if (!state->admitted || incarnation != state->joined.incarnation()) return;
        const absl::StatusCode code = answer.status().code();
        if (code != absl::StatusCode::kFailedPrecondition && code != absl::StatusCode::kNotFound) {
          return;
        }
        state->join_again = true;
        state->watching = false;
        Disconnect();
      });
}

void SimSession::Leave(const std::string& reason) {
  v1::LeaveRunRequest request;
  request.set_run(state_->joined.spec().run());
  request.set_node(state_->joined.node());
  request.set_role(v1::ROLE_NODE);
  request.set_incarnation(state_->joined.incarnation());
  request.set_reason(reason);
  options_.link->Call<v1::LeaveRunResponse>(
      options_.process, [request](Coordinator& host) { return host.LeaveRun(request); },
      [](const absl::StatusOr<v1::LeaveRunResponse>&) {});
  state_->over = true;
  options_.link->GiveUp(state_->watch);
}

}  // namespace isthmus::sim
