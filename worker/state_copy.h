// What a rank holds of the replicated state after a round that is checked (RunSpec.check_every):
// copied while the round waits, hashed beside the rounds that follow. Each rank hashes its own
// blocks; its agent makes the hash of the whole (worker/state_parts.h).
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "isthmus/v1/coordinator.pb.h"
#include "spec/grid.h"
#include "worker/held_part.h"

namespace isthmus {

struct StateCopy {
  v1::StatePart facts;  // without blocks
  struct Part {
    uint32_t section = 0;
    uint32_t first_block = 0;
    std::vector<uint64_t> block_elements;
    std::vector<float> values;  // of those blocks, one after the other
  };
  std::vector<Part> parts;
};

// INVALID_ARGUMENT: the part is not whole blocks of a tensor.
absl::Status CopyPart(const Grid& grid, uint32_t section, const TensorPart<const float>& part,
                      StateCopy* copy);

// Each with at most kStatePartBytesMax of hashes; at least one.
std::vector<v1::StatePart> HashCopy(const StateCopy& copy);

// Hashes copies on a thread of its own, which begins with the first.
class StateHashing {
 public:
  // `done` is called on that thread.
  explicit StateHashing(std::function<void(std::vector<v1::StatePart>)> done)
      : done_(std::move(done)) {}
  ~StateHashing();

  // In the place of one that has not been begun: where rounds are shorter than hashing takes, some
  // are left out.
  void Begin(StateCopy copy);
  // Nothing of what came before is told any more.
  void Drop();

 private:
  void Loop();

  const std::function<void(std::vector<v1::StatePart>)> done_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<StateCopy> next_;
  bool busy_ = false;
  bool dropped_ = false;  // what is being hashed
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace isthmus
