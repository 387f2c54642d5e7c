#include "worker/state_copy.h"

#include <algorithm>
#include <utility>

#include "base/limits.h"
#include "base/sha256.h"
#include "base/status_macros.h"

namespace isthmus {

absl::Status CopyPart(const Grid& grid, uint32_t section, const TensorPart<const float>& part,
                      StateCopy* copy) {
  ISTHMUS_ASSIGN_OR_RETURN(const BlockSpan blocks,
                           BlocksOfPart(grid, {part.tensor, part.first_element, part.data.size()}));
  if (blocks.first == blocks.end) return absl::OkStatus();
  StateCopy::Part& made = copy->parts.emplace_back();
  made.section = section;
  made.first_block = blocks.first;
  for (uint32_t block = blocks.first; block < blocks.end; ++block) {
    made.block_elements.push_back(grid.blocks()[block].elements);
  }
  made.values.assign(part.data.begin(), part.data.end());
  return absl::OkStatus();
}

std::vector<v1::StatePart> HashCopy(const StateCopy& copy) {
  constexpr size_t kHashesMax = kStatePartBytesMax / kSha256Bytes;
  std::vector<v1::StatePart> messages = {copy.facts};
  size_t hashes = 0;  // of the last message
  for (const StateCopy::Part& part : copy.parts) {
    const float* values = part.values.data();
    for (size_t begin = 0; begin < part.block_elements.size();) {
      if (hashes == kHashesMax) {
        messages.push_back(copy.facts);
        hashes = 0;
      }
      const size_t count = std::min(part.block_elements.size() - begin, kHashesMax - hashes);
      v1::BlockHashes& blocks = *messages.back().add_blocks();
      blocks.set_section(part.section);
      blocks.set_first_block(part.first_block + static_cast<uint32_t>(begin));
      for (size_t i = begin; i < begin + count; ++i) {
        Sha256 hash;
        hash.Update(values, part.block_elements[i] * sizeof(float));
        *blocks.mutable_sha256s() += hash.Finish();
        values += part.block_elements[i];
      }
      begin += count;
      hashes += count;
    }
  }
  return messages;
}

StateHashing::~StateHashing() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = dropped_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void StateHashing::Begin(StateCopy copy) {
  std::lock_guard<std::mutex> lock(mutex_);
  next_ = std::move(copy);
  if (!thread_.joinable()) thread_ = std::thread(&StateHashing::Loop, this);
  changed_.notify_all();
}

void StateHashing::Drop() {
  std::unique_lock<std::mutex> lock(mutex_);
  next_.reset();
  dropped_ = true;
  changed_.wait(lock, [this] { return !busy_; });
}

void StateHashing::Loop() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || next_.has_value(); });
    if (stopping_) return;
    const StateCopy copy = *std::exchange(next_, std::nullopt);
    busy_ = true;
    dropped_ = false;
    lock.unlock();
    std::vector<v1::StatePart> parts = HashCopy(copy);
    lock.lock();
    if (!dropped_) {
      lock.unlock();
      done_(std::move(parts));
      lock.lock();
    }
    busy_ = false;
    changed_.notify_all();
  }
}

}  // namespace isthmus
