// The checkpoints of one rank in a folder:
//
//   FOLDER/round-0000000120/rank-0-of-2.safetensors    (worker/train_state.h)
//
// The files of all ranks of a round are a set. A set counts when every rank has its file of it,
// made by one trainer group, and whole; the ranks find that out together (worker/resume.h), so they
// may lie on different machines. Another number of ranks goes on from a set that lies in the folder
// as a whole. A file appears under its name whole or not at all, and what is
// there is removed only when all ranks are known to have newer sets: a crash at any moment leaves
// the last complete set as it was. No torch.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/train_state.h"

namespace isthmus {

// Whether checkpoints may be written to `folder`, as far as that can be told without doing it: it
// is a folder or can be made in one that is there. An error names it.
absl::Status CheckCheckpointFolder(const std::string& folder);

// Used by one thread; writes in another.
class TrainCheckpoints {
 public:
  // Makes the folder (not its parents); removes what an interrupted process left half written.
  // FAILED_PRECONDITION: another number of ranks made what is in it, and of no set are all files
  // here.
  static absl::StatusOr<std::unique_ptr<TrainCheckpoints>> Open(const std::string& folder,
                                                                uint32_t rank, uint32_t ranks);
  ~TrainCheckpoints();  // waits for a file that is being written

  const std::string& folder() const { return folder_; }
  // Rounds of which this rank's file is there, or all files of another number of ranks, descending.
  // Whether they are whole shows in reading.
  std::vector<uint64_t> Rounds() const;
  // This rank's file of a round, or those of all ranks where another number of them made the set.
  std::vector<std::string> PathsOf(uint64_t round) const;

  // Before the first Write: the set that is resumed from; 0: none. Newer files are of no complete
  // set and go.
  void Resume(uint64_t round);
  // A damaged file, or set of another number of ranks, is kept beside its name, for people to look
  // at.
  void SetAside(uint64_t round);

  // Begins to write; a failure is logged, and the last set stays the newest. Not while writing().
  void Write(TrainState state);
  bool writing() const { return writing_; }
  void Wait();
  // Round of the newest file that is complete on disk; 0: none.
  uint64_t newest() const { return newest_; }

  // Every rank has its file of `round`: what is older than the kCheckpointsKept newest sets goes.
  void KeepFrom(uint64_t round);

 private:
  TrainCheckpoints(const std::string& folder, uint32_t rank, uint32_t ranks)
      : folder_(folder), rank_(rank), ranks_(ranks) {}
  std::string FolderOf(uint64_t round) const;
  std::string PathOf(uint64_t round, uint32_t rank, uint32_t ranks) const;
  std::string PathOf(uint64_t round) const { return PathOf(round, rank_, ranks_); }
  // Other numbers of ranks of which files of the round are there.
  std::set<uint32_t> OtherRanks(uint64_t round) const;
  absl::Status CheckRanks() const;
  absl::Status MakeFolder(uint64_t round) const;
  void Remove(uint64_t round) const;

  const std::string folder_;
  const uint32_t rank_, ranks_;
  std::thread writer_;
  std::atomic<bool> writing_{false};
  std::atomic<uint64_t> newest_{0};
};

}  // namespace isthmus
