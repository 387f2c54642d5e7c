#include "transport/outbox.h"

#include <utility>

#include "spec/piece.h"
#include "transport/errors.h"

namespace isthmus {
namespace {

// Whether `held` shows that nothing of `submission` lacks, computed under the same attempt. All of
// its pieces are not enough: where the end did not come, nothing counts yet.
bool Covers(const v1::HeldContribution& held, const Submission& submission) {
  return held.round() == submission.round && held.attempt() == submission.attempt &&
         held.complete();
}

}  // namespace

void Outbox::Put(std::shared_ptr<const Submission> submission, Refused refused) {
  Entry entry;
  entry.submission = std::move(submission);
  entry.refused = std::move(refused);
  entry.number = ++last_number_;
  const uint64_t round = entry.submission->round;
  if (round <= committed_round_) entry.state = State::kHeld;
  entries_[round] = std::move(entry);
}

void Outbox::Settle(uint64_t round) {
  held_.erase(held_.begin(), held_.upper_bound(round));
  entries_.erase(entries_.begin(), entries_.upper_bound(round));
}

std::optional<Outbox::Ticket> Outbox::Next() {
  for (auto& [round, entry] : entries_) {
    if (entry.state != State::kToSend) continue;
    entry.state = State::kUnderWay;
    entry.unsure = false;
    entry.opened = false;
    if (entry.sent_before) ++resends_;
    entry.sent_before = true;
    Ticket ticket{entry.submission, entry.number, {}};
    if (const auto held = held_.find(round); held != held_.end()) {
      if (held->second.attempt() == entry.submission->attempt) {
        ticket.held.assign(held->second.ranges().begin(), held->second.ranges().end());
      }
      held_.erase(held);
    }
    return ticket;
  }
  return std::nullopt;
}

Outbox::Part Outbox::NotHeld(const Ticket& ticket) {
  const Submission& submission = *ticket.submission;
  ChunkRanges held;
  for (const v1::ChunkRange& range : ticket.held) held.Add(range.begin(), range.end());
  Part part;
  for (size_t i = 0; i < submission.piece_ranges.size() && i < submission.pieces.size(); ++i) {
    const v1::ChunkRange& range = submission.piece_ranges[i];
    if (held.Contains(range.begin(), range.end())) continue;
    part.pieces.push_back(&submission.pieces[i]);
    const bool goes_on = !part.ranges.empty() && part.ranges.back().end() == range.begin();
    if (goes_on) {
      part.ranges.back().set_end(range.end());
    } else {
      part.ranges.push_back(range);
    }
  }
  const bool is_known =
      !submission.pieces.empty() && submission.piece_ranges.size() == submission.pieces.size();
  if (is_known && part.pieces.empty()) {
    // Only the end was lost, which comes with a range.
    part.pieces.push_back(&submission.pieces.back());
    part.ranges.push_back(submission.piece_ranges.back());
  }
  if (is_known && part.pieces.size() < submission.pieces.size()) return part;
  part.ranges = submission.ranges;
  part.pieces.clear();
  for (const std::string& piece : submission.pieces) part.pieces.push_back(&piece);
  return part;
}

Outbox::Entry* Outbox::Find(const Ticket& ticket) {
  const auto found = entries_.find(ticket.submission->round);
  if (found == entries_.end() || found->second.number != ticket.number) return nullptr;
  return &found->second;
}

void Outbox::Held(const Ticket& ticket) {
  Entry* entry = Find(ticket);
  if (entry != nullptr) entry->state = entry->unsure ? State::kToSend : State::kHeld;
}

void Outbox::Again(const Ticket& ticket) {
  Entry* entry = Find(ticket);
  if (entry != nullptr) entry->state = State::kToSend;
}

Outbox::Refused Outbox::Refuse(const Ticket& ticket, uint64_t incarnation) {
  Entry* entry = Find(ticket);
  if (entry == nullptr) return nullptr;
  if (ticket.submission->round <= committed_round_) {
    entry->state = State::kHeld;
    return nullptr;
  }
  if (entry->unsure || (entry->opened && incarnation != 0)) {
    entry->state = State::kToSend;
    return nullptr;
  }
  entry->state = State::kRefused;
  entry->refused_incarnation = incarnation;
  return std::exchange(entry->refused, nullptr);
}

Outbox::Verdict Outbox::Conclude(const Ticket& ticket, uint64_t incarnation, bool is_current,
                                 const absl::Status& status) {
  using Next = Verdict::Next;
  if (status.ok()) {
    Held(ticket);
    return {Next::kGoOn, nullptr};
  }
  switch (status.code()) {
    case absl::StatusCode::kCancelled:  // by us: the connection was given up
      Again(ticket);
      return {Next::kGoOn, nullptr};
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kAborted:
      return {Next::kGoOn, Refuse(ticket, incarnation)};
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kNotFound:
      if (is_current && !AsksToJoinAgain(status)) {
        return {Next::kGoOn, Refuse(ticket, incarnation)};
      }
      Again(ticket);  // when the next watch begins
      return {is_current ? Next::kJoinAgain : Next::kGoOn, nullptr};
    default:
      break;
  }
  if (!IsRetryable(status)) return {Next::kEnd, nullptr};
  Again(ticket);
  return {Next::kTryAgainLater, nullptr};
}

void Outbox::WatchStarted(const v1::WatchStart& start, uint64_t incarnation) {
  committed_round_ = start.committed_round();
  held_.clear();
  for (const v1::HeldContribution& one : start.held()) {
    if (!one.complete()) held_[one.round()] = one;
  }
  for (auto& [round, entry] : entries_) {
    bool held = round <= committed_round_;
    for (const v1::HeldContribution& one : start.held()) held |= Covers(one, *entry.submission);
    switch (entry.state) {
      case State::kUnderWay:
        entry.unsure = !held;
        break;
      case State::kRefused:
        if (entry.refused_incarnation != incarnation) entry.state = State::kToSend;
        break;
      case State::kToSend:
      case State::kHeld:
        entry.state = held ? State::kHeld : State::kToSend;
        break;
    }
  }
}

void Outbox::Opened(uint64_t round) {
  const auto found = entries_.find(round);
  if (found == entries_.end()) return;
  found->second.opened = true;
  if (found->second.state == State::kRefused) found->second.state = State::kToSend;
}

}  // namespace isthmus
