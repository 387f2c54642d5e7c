// An agent's side of a check (RunSpec.check_every): the ranks' hashes of blocks become the hash of
// the node's state. Which rank holds which block does not change it. Pure; not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "isthmus/v1/coordinator.pb.h"
#include "spec/grid.h"

namespace isthmus {

class StateParts {
 public:
  // SHA-256 of the state after the part's round once all blocks of it are there; empty until then.
  // The same again is well; of more than kStateRoundsOpenMax rounds the oldest is given up.
  // INVALID_ARGUMENT: blocks that the model does not have, or other facts than another part's.
  absl::StatusOr<std::string> Add(const v1::StatePart& part, const Grid& grid);

 private:
  struct Open {
    v1::StatePart facts;              // without blocks
    std::vector<std::string> hashes;  // by section, of all blocks in order
    std::vector<std::vector<bool>> held;
    size_t missing = 0;
  };
  absl::Status TakeBlocks(const v1::BlockHashes& blocks, size_t count, Open* open) const;

  std::map<uint64_t, Open> rounds_;
};

}  // namespace isthmus
