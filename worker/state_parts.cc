#include "worker/state_parts.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/sha256.h"
#include "base/status_macros.h"
#include "spec/state_hash.h"

namespace isthmus {
namespace {

// Parameters, first and second moments.
constexpr uint32_t kSectionsMax = 3;

v1::StatePart FactsOf(const v1::StatePart& part) {
  v1::StatePart facts = part;
  facts.clear_blocks();
  return facts;
}

}  // namespace

absl::Status StateParts::TakeBlocks(const v1::BlockHashes& blocks, size_t count, Open* open) const {
  const size_t hashes = blocks.sha256s().size() / kSha256Bytes;
  if (blocks.section() >= open->hashes.size() || blocks.sha256s().size() % kSha256Bytes != 0 ||
      hashes > count || blocks.first_block() > count - hashes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a part of the state after round ", open->facts.round(), " has ", blocks.sha256s().size(),
        " bytes of hashes of section ", blocks.section(), " from block ", blocks.first_block(),
        " on; there are ", open->hashes.size(), " sections of ", count, " blocks"));
  }
  open->hashes[blocks.section()].replace(blocks.first_block() * kSha256Bytes,
                                         blocks.sha256s().size(), blocks.sha256s());
  for (size_t i = blocks.first_block(); i < blocks.first_block() + hashes; ++i) {
    if (open->held[blocks.section()][i]) continue;
    open->held[blocks.section()][i] = true;
    --open->missing;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> StateParts::Add(const v1::StatePart& part, const Grid& grid) {
  const size_t count = grid.blocks().size();
  if (part.sections() != 1 && part.sections() != kSectionsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("a state has 1 or ", kSectionsMax, " sections, not ", part.sections()));
  }
  if (rounds_.count(part.round()) == 0) {
    if (rounds_.size() == kStateRoundsOpenMax) {
      if (part.round() < rounds_.begin()->first) return std::string();
      rounds_.erase(rounds_.begin());
    }
    Open& made = rounds_[part.round()];
    made.facts = FactsOf(part);
    made.hashes.assign(part.sections(), std::string(count * kSha256Bytes, '\0'));
    made.held.assign(part.sections(), std::vector<bool>(count, false));
    made.missing = part.sections() * count;
  }
  Open& open = rounds_.at(part.round());
  if (open.facts.SerializeAsString() != FactsOf(part).SerializeAsString()) {
    return absl::InvalidArgumentError(
        absl::StrCat("ranks say different things of the state after round ", part.round(), ": ",
                     open.facts.ShortDebugString(), " and ", FactsOf(part).ShortDebugString()));
  }
  for (const v1::BlockHashes& blocks : part.blocks()) {
    ISTHMUS_RETURN_IF_ERROR(TakeBlocks(blocks, count, &open));
  }
  if (open.missing > 0) return std::string();
  v1::SnapshotFacts facts;
  facts.set_step(open.facts.step());
  facts.set_beta1_power_bits(open.facts.beta1_power_bits());
  facts.set_beta2_power_bits(open.facts.beta2_power_bits());
  facts.set_frozen_sha256(open.facts.frozen_sha256());
  std::vector<std::string> sections;
  for (const std::string& hashes : open.hashes) {
    sections.push_back(SectionSha256(grid, hashes, facts.step()));
  }
  return StateSha256(sections, facts);
}

}  // namespace isthmus
