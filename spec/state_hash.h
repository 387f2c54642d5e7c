// SHA-256 of the replicated state: what must be equal on all nodes at a round. Shards, ranks and
// pieces do not change it.
//
//   section   SHA-256( SHA-256(block 0) ... SHA-256(block n-1), step as 8 bytes little endian )
//   state     the section of the parameters where that is all there is; else
//             SHA-256( sections, beta1 power, beta2 power, frozen )
//
// A block's bytes are its float32 values, little endian, in row-major order. With AdamW the
// sections are parameters, first and second moments, and the powers (running products of the betas)
// are 8 bytes each, float64; without it one section and no powers. `frozen` is SHA-256 of the
// frozen tensors, or nothing where there are none. Nodes that differ in any of it must not join one
// run.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/sha256.h"
#include "isthmus/v1/coordinator.pb.h"
#include "spec/grid.h"

namespace isthmus {

// Of a section. `block_hashes`: those of all blocks of the grid in order, 32 bytes each.
std::string SectionSha256(const Grid& grid, absl::string_view block_hashes, uint64_t step);

// Of a state. `facts`: step, powers and frozen_sha256 are read. `sections`: 1 or 3 of them.
std::string StateSha256(const std::vector<std::string>& sections, const v1::SnapshotFacts& facts);

// Hashes a state that comes as a stream: each section's elements in order, section after section.
class StateHasher {
 public:
  // `grid` and `facts` outlive it.
  StateHasher(const Grid& grid, const v1::SnapshotFacts& facts);

  // Whole float32 values. OUT_OF_RANGE: more than the facts' sections have.
  absl::Status Add(absl::string_view values);
  // 32 bytes. FAILED_PRECONDITION: the state is not whole. The hasher must not be used afterwards.
  absl::StatusOr<std::string> Finish();

 private:
  void EndBlock();

  const Grid& grid_;
  const v1::SnapshotFacts& facts_;
  std::vector<std::string> sections_;  // that are whole
  std::string block_hashes_;           // of the section under way
  std::unique_ptr<Sha256> block_;      // null: the next one has not begun
  uint64_t block_bytes_left_ = 0;
};

}  // namespace isthmus
