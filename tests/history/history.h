// What happened in a run, as its processes saw it, one event after the other. The simulator and
// tests with real processes record the same events; tests/history/checker.h judges them.
//
// Order matters where the checker says so: an event of one process comes after the events it knows
// of. A list that one thread writes, or logs merged by a clock that all processes share, will do.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "isthmus/v1/coordinator.pb.h"

namespace isthmus {

enum class EventKind {
  // Of a node's trainer. A life is one process of it, from its start to its death.
  kRestored,  // a life begins with the state of `round`
  kComputed,  // a contribution exists; nothing of it was sent before
  kReceipt,   // the coordinator says that it holds a complete contribution with this digest
  kReceived,  // an update has arrived, whole
  kSettled,   // what became of a contribution, as the node sees it
  kApplied,   // an update has changed the replicated state, whose hash is `state`
  // Of the coordinator.
  kDurable,    // the record and its pieces would survive the loss of power
  kPublished,  // the first byte of the update left
};

enum class Outcome {
  kNone,
  kIncluded,  // the update has it: taken off the pending list
  kLeftOut,   // the update does not have it: back into the residual
  kDropped,   // lost with its process, or given up, and counted as that
};

using PiecesPtr = std::shared_ptr<const std::vector<std::string>>;

struct Event {
  EventKind kind = EventKind::kRestored;
  std::string node;                  // empty for the coordinator's
  uint64_t life = 0;                 // of the node: rises with each start of its trainer
  uint64_t round = 0;                // kRestored: 0 is the start state
  std::string digest;                // kComputed, kReceipt, kSettled
  Outcome outcome = Outcome::kNone;  // kSettled
  std::string sha256;                // of the record: kRestored, kPublished, kApplied
  std::string state;                 // kRestored, kApplied; empty: was not recorded
  // kDurable, kReceived. A record that was logged in part has `round`, `previous_sha256`, `sha256`,
  // `is_void` and `included`, and `is_whole` says so.
  std::shared_ptr<const v1::UpdateRecord> record;
  bool is_whole = true;
  PiecesPtr pieces;  // kComputed, kDurable, kReceived; null: were not recorded
};

using History = std::vector<Event>;

// One line for people.
std::string Describe(const Event& event);

}  // namespace isthmus
