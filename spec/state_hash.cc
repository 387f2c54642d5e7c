#include "spec/state_hash.h"

#include <algorithm>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace isthmus {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "values are hashed as they lie");

std::string SectionSha256(const Grid& grid, absl::string_view block_hashes, uint64_t step) {
  ISTHMUS_CHECK(block_hashes.size() == grid.blocks().size() * kSha256Bytes);
  Sha256 root;
  root.Update(block_hashes);
  root.UpdateU64(step);
  return root.Finish();
}

std::string StateSha256(const std::vector<std::string>& sections, const v1::SnapshotFacts& facts) {
  const bool alone = sections.size() == 1;
  if (alone && facts.frozen_sha256().empty()) return sections[0];
  Sha256 state;
  for (const std::string& section : sections) state.Update(section);
  if (!alone) {
    state.UpdateU64(facts.beta1_power_bits());
    state.UpdateU64(facts.beta2_power_bits());
  }
  state.Update(facts.frozen_sha256());
  return state.Finish();
}

StateHasher::StateHasher(const Grid& grid, const v1::SnapshotFacts& facts)
    : grid_(grid), facts_(facts) {}

void StateHasher::EndBlock() {
  block_hashes_ += block_->Finish();
  block_ = nullptr;
  if (block_hashes_.size() < grid_.blocks().size() * kSha256Bytes) return;
  sections_.push_back(SectionSha256(grid_, block_hashes_, facts_.step()));
  block_hashes_.clear();
}

absl::Status StateHasher::Add(absl::string_view values) {
  while (!values.empty()) {
    if (sections_.size() == facts_.sections() || grid_.blocks().empty()) {
      return absl::OutOfRangeError(absl::StrCat("a state of ", facts_.sections(), " sections with ",
                                                grid_.elements(), " elements has ", values.size(),
                                                " bytes more than that"));
    }
    if (block_ == nullptr) {
      block_ = std::make_unique<Sha256>();
      block_bytes_left_ =
          grid_.blocks()[block_hashes_.size() / kSha256Bytes].elements * sizeof(float);
    }
    const size_t size = static_cast<size_t>(std::min<uint64_t>(values.size(), block_bytes_left_));
    block_->Update(values.substr(0, size));
    values.remove_prefix(size);
    block_bytes_left_ -= size;
    if (block_bytes_left_ == 0) EndBlock();
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> StateHasher::Finish() {
  if (sections_.size() != facts_.sections()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the state is not whole: ", sections_.size(), " of ", facts_.sections(), " sections and ",
        block_hashes_.size() / kSha256Bytes, " of ", grid_.blocks().size(), " blocks are there"));
  }
  return StateSha256(sections_, facts_);
}

}  // namespace isthmus
