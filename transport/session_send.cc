// The send thread and the beat thread: what goes up.
#include <algorithm>
#include <utility>

#include "base/limits.h"
#include "base/text.h"
#include "transport/errors.h"
#include "transport/session_impl.h"

namespace isthmus {
namespace {

// For a server whose spec does not say; ours always does.
constexpr uint32_t kHeartbeatFallbackMs = 3000;
// What was applied travels with the next submission; without one for so long a heartbeat tells it
// at once, since a node that has caught up counts again only when the server knows.
constexpr uint32_t kTellMs = 50;

}  // namespace

void SessionImpl::SendLoop() {
  Lock lock(mutex_);
  while (!over()) {
    std::optional<Outbox::Ticket> ticket;
    if (watching_) ticket = outbox_.Next();
    if (!ticket.has_value()) {
      changed_.wait(lock);  // for a submission, or for a watch to begin
      continue;
    }
    // A node's contribution that broke off is gone on with. Ranks are near their agent.
    if (!is_node()) ticket->held.clear();
    const Outbox::Part part = Outbox::NotHeld(*ticket);
    v1::SubmitHeader header = Header(*ticket->submission);
    *header.mutable_ranges() = {part.ranges.begin(), part.ranges.end()};
    const std::shared_ptr<Client> client = client_;
    lock.unlock();
    v1::SubmitEnd end;
    end.set_digest(ticket->submission->digest);
    sending_ = true;
    const auto receipt = client->Submit(header, part.pieces, end);
    sending_ = false;
    absl::Status status = receipt.status();
    // The server gave up meanwhile what it had held.
    const bool lacks = receipt.ok() && !ticket->held.empty() && !receipt->complete();
    if (lacks) status = absl::CancelledError("what was held is gone");
    lock.lock();
    Outbox::Refused refused;
    const int64_t delay_ms = Conclude(*ticket, header.incarnation(), status, &refused);
    lock.unlock();
    notifier_.Waiting(SessionNotifier::kSubmission, delay_ms > 0 ? Sentence(status) : "");
    if (refused) notifier_.Call([&](SessionListener*) { refused(status); });
    lock.lock();
    if (delay_ms > 0) changed_.wait_for(lock, Milliseconds(delay_ms), [this] { return over(); });
  }
}

v1::SubmitHeader SessionImpl::Header(const Submission& submission) {
  v1::SubmitHeader header;
  header.set_run(joined_.spec().run());
  header.set_node(joined_.node());
  header.set_role(options_.join.role());
  header.set_rank(options_.join.rank().rank());
  header.set_round(submission.round);
  header.set_base_round(submission.base_round);
  header.set_incarnation(joined_.incarnation());
  header.set_attempt(submission.attempt);
  header.set_codec(submission.codec);
  header.set_tokens(submission.work.tokens);
  header.set_steps(submission.work.steps);
  header.set_lr_bits(submission.lr_bits);
  header.set_digest(submission.digest);
  header.set_acknowledged_round(acknowledged_.round);
  told_round_ = acknowledged_.round;
  header.set_abstain_reason(OneLine(submission.abstain_reason, kReasonBytesMax));
  return header;
}

int64_t SessionImpl::Conclude(const Outbox::Ticket& ticket, uint64_t incarnation,
                              const absl::Status& status, Outbox::Refused* refused) {
  const bool is_current = admitted_ && incarnation == joined_.incarnation();
  Outbox::Verdict verdict = outbox_.Conclude(ticket, incarnation, is_current, status);
  *refused = std::move(verdict.refused);
  switch (verdict.next) {
    case Outbox::Verdict::Next::kGoOn:
      if (status.ok()) send_backoff_.Reset();
      return 0;
    case Outbox::Verdict::Next::kJoinAgain:
      join_again_ = true;
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

void SessionImpl::BeatLoop() {
  Lock lock(mutex_);
  while (!over()) {
    changed_.wait(lock, [this] { return over() || admitted_; });
    const uint32_t spec_ms = joined_.spec().timing().heartbeat_ms();
    const Milliseconds interval(spec_ms > 0 ? spec_ms : kHeartbeatFallbackMs);
    const Steady::time_point next = Steady::now() + interval;
    while (!over() && Steady::now() < next) {
      if (!untold()) {
        changed_.wait_until(lock, next, [this] { return over() || untold(); });
      } else if (!changed_.wait_until(lock, std::min(next, Steady::now() + Milliseconds(kTellMs)),
                                      [this] { return over() || !untold(); })) {
        break;
      }
    }
    if (admitted_ && !over()) Beat(&lock);
  }
}

v1::HeartbeatRequest SessionImpl::MakeHeartbeat() const {
  v1::HeartbeatRequest request;
  request.set_run(joined_.spec().run());
  request.set_node(joined_.node());
  request.set_incarnation(joined_.incarnation());
  request.set_acknowledged_round(acknowledged_.round);
  request.set_waiting_for(waiting_for_);
  request.set_checkpoint_round(checkpoint_round_);
  request.set_state_round(state_.round);
  request.set_state_sha256(state_.sha256);
  for (const auto& [round, sha256] : checks_) {
    v1::StateReport* const check = request.add_checks();
    check->set_round(round);
    check->set_sha256(sha256);
  }
  return request;
}

void SessionImpl::Beat(Lock* lock) {
  const v1::HeartbeatRequest request = MakeHeartbeat();
  told_round_ = acknowledged_.round;
  state_untold_ = false;
  const std::shared_ptr<Client> client = client_;
  lock->unlock();
  const auto answer = client->Heartbeat(request);
  if (answer.ok()) notifier_.Waiting(SessionNotifier::kServer, answer->waiting_for());
  lock->lock();
  const bool is_current = admitted_ && request.incarnation() == joined_.incarnation();
  if (answer.ok() || !is_current) return;
  const absl::StatusCode code = answer.status().code();
  if (code == absl::StatusCode::kFailedPrecondition || code == absl::StatusCode::kNotFound) {
    join_again_ = true;
    Disconnect();
  }
  // Any other failure shows on the watch too, which decides.
}

}  // namespace isthmus
