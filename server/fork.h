// A new run that begins with what another one kept: the snapshot's state becomes the start state,
// round and step begin anew, and nodes fetch it whatever they were built from.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "isthmus/v1/run_spec.pb.h"
#include "isthmus/v1/storage.pb.h"
#include "server/store.h"

namespace isthmus {

// A snapshot of a run, and what must be known to read it.
struct ForkSource {
  std::shared_ptr<Store> store;
  v1::StoredRun run;
  v1::RunSpec spec;  // the last revision
  v1::StoredSnapshot snapshot;
};

// What the new run begins with.
struct ForkStart {
  StoreBatch batch;     // run and snapshot: with it the new run exists
  std::string without;  // of the other run's state, in words; empty: nothing
};

// Copies the snapshot's pieces into `to`, where they do not count before the batch is written.
// State of an optimizer that the new spec does not have starts at zero, in place of the copy.
// NOT_FOUND: a newer snapshot took its place meanwhile. Errors of reading and writing.
absl::StatusOr<ForkStart> CopyForFork(const ForkSource& from, const v1::RunSpec& spec, Store* to);

}  // namespace isthmus
