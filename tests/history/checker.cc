#include "tests/history/checker.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/sha256.h"
#include "spec/update_record.h"
#include "tests/history/plain_fold.h"

namespace isthmus {
namespace {

std::string HashOf(const PiecesPtr& pieces) {
  if (pieces == nullptr) return "";
  Sha256 hash;
  for (const std::string& piece : *pieces) hash.UpdateSized(piece);
  return hash.Finish();
}

std::string Who(const std::string& node, uint64_t round, const std::string& digest) {
  return absl::StrCat("contribution ", HexPrefix(digest), " of ", node, " to round ", round);
}

}  // namespace

void HistoryChecker::Violate(const std::string& invariant, const std::string& sentence) {
  violations_.push_back({invariant, sentence, event_ == 0 ? 0 : event_ - 1});
}

HistoryChecker::Round* HistoryChecker::Find(uint64_t round) {
  return round == 0 || round > rounds_.size() ? nullptr : &rounds_[round - 1];
}

bool HistoryChecker::Names(const Round& round, const std::string& node, const std::string& digest) {
  for (const v1::IncludedContribution& one : round.record->included()) {
    if (one.node() == node && one.digest() == digest) return true;
  }
  return false;
}

void HistoryChecker::Take(const Event& event) {
  ++event_;
  switch (event.kind) {
    case EventKind::kRestored:
      return TakeRestored(event);
    case EventKind::kComputed:
      return TakeComputed(event);
    case EventKind::kReceipt:
      return TakeReceipt(event);
    case EventKind::kReceived:
      return TakeReceived(event);
    case EventKind::kSettled:
      return TakeSettled(event);
    case EventKind::kApplied:
      return TakeApplied(event);
    case EventKind::kDurable:
      return TakeDurable(event);
    case EventKind::kPublished:
      return TakePublished(event);
  }
}

HistoryChecker::Life* HistoryChecker::LifeOf(const Event& event) {
  Life& life = lives_[event.node];
  if (life.begun && life.life == event.life) return &life;
  Violate("I1", absl::StrCat(event.node, " acts in life ", event.life, ", its present one is ",
                             life.life));
  return nullptr;
}

void HistoryChecker::TakeRestored(const Event& event) {
  Life& life = lives_[event.node];
  if (life.begun && event.life <= life.life) {
    Violate("I1", absl::StrCat(event.node, " starts life ", event.life, " after life ", life.life));
  }
  for (const auto& [round, digest] : life.open) {
    Violate("I1", absl::StrCat(Who(event.node, round, digest), " of life ", life.life,
                               " was neither settled nor counted as dropped"));
  }
  life = Life();
  life.begun = true;
  life.life = event.life;
  life.received = life.applied = event.round;
  CheckState(event.node, event.round, event.state);
  if (event.round == 0) return;
  const Round* round = Find(event.round);
  if (round == nullptr) {
    Violate("I4",
            absl::StrCat(event.node, " starts from round ", event.round, ", which is not durable"));
  } else if (!event.sha256.empty() && round->sha256 != event.sha256) {
    Violate("I3", absl::StrCat(event.node, " starts from another round ", event.round, ": ",
                               HexPrefix(event.sha256), ", durable is ", HexPrefix(round->sha256)));
  }
}

void HistoryChecker::TakeComputed(const Event& event) {
  Life* life = LifeOf(event);
  if (life == nullptr) return;
  if (!life->open.emplace(event.round, event.digest).second) {
    Violate("I1", absl::StrCat(event.node, " computes round ", event.round,
                               " twice in one life without settling it"));
  }
  Contribution& known = contributions_[Key(event.node, event.round, event.digest)];
  if (known.pieces == nullptr) known.pieces = event.pieces;
  known.lives.insert(event.life);
}

void HistoryChecker::TakeReceipt(const Event& event) {
  if (contributions_.count(Key(event.node, event.round, event.digest)) != 0) return;
  Violate("I1", absl::StrCat("the receipt names ", Who(event.node, event.round, event.digest),
                             ", which was never computed"));
}

void HistoryChecker::TakeReceived(const Event& event) {
  const uint64_t number = event.record->round();
  const Round* round = Find(number);
  if (round == nullptr) {
    Violate("I4", absl::StrCat(event.node, " has update ", number, " before it is durable"));
  } else if (round->sha256 != event.record->sha256()) {
    Violate("I3", absl::StrCat(event.node, " has another update ", number, ": ",
                               HexPrefix(event.record->sha256()), ", durable is ",
                               HexPrefix(round->sha256)));
  } else if (const std::string payload = HashOf(event.pieces);
             !payload.empty() && !round->payload.empty() && payload != round->payload) {
    Violate("I3", absl::StrCat(event.node, " has other bytes of update ", number));
  }
  Life* life = LifeOf(event);
  if (life == nullptr) return;
  if (number != life->received + 1) {
    Violate("I3", absl::StrCat(event.node, " receives update ", number, " after update ",
                               life->received));
  }
  life->received = number;
}

void HistoryChecker::TakeSettled(const Event& event) {
  Life* life = LifeOf(event);
  if (life == nullptr) return;
  const std::string who = Who(event.node, event.round, event.digest);
  const auto open = life->open.find(event.round);
  if (open == life->open.end() || open->second != event.digest) {
    return Violate("I1", absl::StrCat(who, " is settled, but is not open in this life"));
  }
  life->open.erase(open);
  Contribution& contribution = contributions_[Key(event.node, event.round, event.digest)];
  if (event.outcome == Outcome::kDropped) {
    contribution.dropped = true;
    return;
  }
  const bool included = event.outcome == Outcome::kIncluded;
  const Round* round = Find(event.round);
  if (round == nullptr) {
    return Violate("I4", absl::StrCat(who, " is settled before its round is durable"));
  }
  // What several lives computed, bit for bit, is in the update once; a life that never sent its own
  // may take it back.
  const bool named = Names(*round, event.node, event.digest);
  const bool of_another_life = named && !included && contribution.lives.size() > 1;
  if (included != named && !of_another_life) {
    Violate("I1", absl::StrCat(who, included ? " is settled as included, its update lacks it"
                                             : " is settled as left out, its update has it"));
  }
  if (!included) contribution.left_out = true;
}

void HistoryChecker::TakeApplied(const Event& event) {
  Life* life = LifeOf(event);
  if (life == nullptr) return;
  if (event.round != life->applied + 1 || event.round > life->received) {
    Violate("I3", absl::StrCat(event.node, " applies update ", event.round, " after update ",
                               life->applied, ", received up to ", life->received));
  }
  life->applied = event.round;
  if (const auto open = life->open.find(event.round); open != life->open.end()) {
    Violate("I1", absl::StrCat(Who(event.node, event.round, open->second),
                               " is not settled when its update is applied"));
  }
  CheckState(event.node, event.round, event.state);
}

void HistoryChecker::CheckState(const std::string& node, uint64_t round, const std::string& state) {
  if (state.empty() || (round != 0 && Find(round) == nullptr)) return;
  std::string& known = round == 0 ? start_state_ : Find(round)->state;
  if (known.empty()) known = state;
  if (known == state) return;
  Violate("I3", absl::StrCat("after round ", round, " the state of ", node, " is ",
                             HexPrefix(state), ", that of others ", HexPrefix(known)));
}

void HistoryChecker::TakeDurable(const Event& event) {
  const v1::UpdateRecord& record = *event.record;
  const uint64_t number = record.round();
  const std::string previous = rounds_.empty() ? "" : rounds_.back().sha256;
  if (number != rounds_.size() + 1) {
    return Violate("I3",
                   absl::StrCat("round ", number, " is committed after round ", rounds_.size()));
  }
  if (record.previous_sha256() != previous) {
    Violate("I2", absl::StrCat("round ", number, " does not build on round ", number - 1));
  }
  if (event.is_whole && UpdateRecordSha256(record) != record.sha256()) {
    Violate("I2", absl::StrCat("the hash of record ", number, " is wrong"));
  }
  const uint64_t base = number - std::min<uint64_t>(number, 1 + overlap_);
  if (event.is_whole && (record.base_round() != base || record.step() != number * local_steps_)) {
    Violate("I2", absl::StrCat("record ", number, " has base round ", record.base_round(),
                               " and step ", record.step()));
  }
  rounds_.push_back({record.sha256(), event.record, HashOf(event.pieces), ""});
  CheckIncluded(record);
  CheckFold(record, event.pieces);
}

void HistoryChecker::CheckIncluded(const v1::UpdateRecord& record) {
  const std::string* before = nullptr;
  for (const v1::IncludedContribution& one : record.included()) {
    if (before != nullptr && *before >= one.node()) {
      Violate("I1", absl::StrCat("update ", record.round(), " lists ", one.node(), " after ",
                                 *before, "; names ascend, each once"));
    }
    before = &one.node();
    const std::string who = Who(one.node(), record.round(), one.digest());
    const auto found = contributions_.find(Key(one.node(), record.round(), one.digest()));
    if (found == contributions_.end()) {
      Violate("I1",
              absl::StrCat("update ", record.round(), " has ", who, ", which was never computed"));
      continue;
    }
    Contribution& contribution = found->second;
    if (contribution.included_in != 0 || contribution.left_out) {
      Violate("I1", absl::StrCat(who, " counts twice"));
    }
    contribution.included_in = record.round();
  }
  if (record.is_void() != (record.included_size() == 0)) {
    Violate("I2", absl::StrCat("update ", record.round(), record.is_void() ? " is" : " is not",
                               " void and has ", record.included_size(), " contributions"));
  }
}

void HistoryChecker::CheckFold(const v1::UpdateRecord& record, const PiecesPtr& update) {
  if (grid_ == nullptr || update == nullptr) return;
  if (record.is_void()) {
    if (!update->empty())
      Violate("I2", absl::StrCat("void update ", record.round(), " has pieces"));
    return;
  }
  std::vector<PiecesPtr> nodes;
  for (const v1::IncludedContribution& one : record.included()) {
    const auto found = contributions_.find(Key(one.node(), record.round(), one.digest()));
    if (found == contributions_.end() || found->second.pieces == nullptr) return;
    nodes.push_back(found->second.pieces);
  }
  auto expected = PlainFold(*grid_, nodes);
  if (expected.ok() && record.codec() == v1::PAYLOAD_CODEC_SIGN_PLANE) {
    TakeSigns(*grid_, &*expected);
  }
  const auto got = ReadDense(*grid_, *update);
  if (!expected.ok() || !got.ok()) {
    return Violate("I2", absl::StrCat("update ", record.round(), " cannot be read: ",
                                      (expected.ok() ? got : expected).status().ToString()));
  }
  if (SameBits(*expected, *got)) return;
  Violate("I2", absl::StrCat("update ", record.round(),
                             " is not the fold of the contributions that it lists"));
}

void HistoryChecker::TakePublished(const Event& event) {
  const Round* round = Find(event.round);
  if (round == nullptr) {
    Violate("I4", absl::StrCat("update ", event.round, " leaves before it is durable"));
  } else if (round->sha256 != event.sha256) {
    Violate("I3", absl::StrCat("another update ", event.round, " leaves than the durable one"));
  }
}

void HistoryChecker::Finish() {
  for (const auto& [node, life] : lives_) {
    for (const auto& [round, digest] : life.open) {
      Violate("I1", absl::StrCat(Who(node, round, digest),
                                 " is neither settled nor counted as dropped at the end"));
    }
  }
  for (const auto& [key, one] : contributions_) {
    if (one.included_in != 0 || one.left_out || one.dropped) continue;
    const auto& [node, round, digest] = key;
    Violate("I1", absl::StrCat(Who(node, round, digest), " is not accounted for"));
  }
}

HistoryChecker::Ledger HistoryChecker::ledger() const {
  Ledger ledger;
  for (const auto& [key, one] : contributions_) {
    if (one.included_in != 0) {
      ++ledger.included;
    } else if (one.left_out) {
      ++ledger.left_out;
    } else if (one.dropped) {
      ++ledger.dropped;
    }
  }
  return ledger;
}

std::vector<Violation> CheckHistory(const History& history, std::shared_ptr<const Grid> grid,
                                    bool complete) {
  HistoryChecker checker(std::move(grid));
  for (const Event& event : history) checker.Take(event);
  if (complete) checker.Finish();
  return checker.violations();
}

}  // namespace isthmus
