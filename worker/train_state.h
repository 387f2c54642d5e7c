// What one rank puts aside at a committed round, so that a later process goes on from there bit for
// bit (design rule 12), and the file it lies in. There is no random state: sample order and start
// parameters are functions of the spec and the step. No torch.
//
// The file is safetensors. Its metadata are the facts, as texts, and a SHA-256 over them and all
// tensors, so that a file says by itself whether it is whole:
//
//   parameters/NAME@FIRST   of the part of tensor NAME from element FIRST on, float32
//   residual/NAME@FIRST, moment1/NAME@FIRST, moment2/NAME@FIRST   where the method has them
//   x/NAME@FIRST            where the parameters hold local steps that are carried
//   inner1/NAME@FIRST, inner2/NAME@FIRST   moments of the inner optimizer, with local steps
//   pending/ROUND/I         piece I of a contribution that is not settled, bytes
//   taken/ROUND/I           piece I of what it took from the residual, where that is not in those
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/methods/method.h"

namespace isthmus {

struct TrainFacts {
  // Whose it is.
  std::string run, node;
  uint32_t rank = 0;
  uint32_t ranks = 1;
  std::string group_id;            // of the trainer group that made it; the same on all ranks
  std::string fingerprint;         // of the manifest, 32 bytes
  std::string start_state_sha256;  // of the state that the run began with, 32 bytes
  // Where it stands.
  uint64_t round = 0;         // applied; at least 1
  uint64_t step = 0;          // global step; decides what data comes next
  std::string update_sha256;  // of that round's record, 32 bytes
  uint64_t attempt = 0;       // of the group that made it
};

// A part of a tensor that the rank holds.
struct StatePart {
  std::string tensor;
  uint64_t first_element = 0;
  uint64_t elements = 0;
};

struct TrainState {
  TrainFacts facts;
  std::vector<StatePart> parts;
  std::vector<std::vector<float>> parameters;  // [part]; with local steps the node's own
  StepState inner;                             // of the inner optimizer, with local steps
  MethodState method;                          // vectors over the same parts
};

// The file appears under its name whole and on disk, or not at all.
absl::Status WriteTrainState(const std::string& path, const TrainState& state);

// The facts alone; that they are whole is not checked. DATA_LOSS: no file of this form.
absl::StatusOr<TrainFacts> ReadTrainFacts(const std::string& path);

// All of it, checked, with vectors in the order of `parts`. NOT_FOUND: no such file. DATA_LOSS: it
// is damaged. FAILED_PRECONDITION: whole, but of other parts.
absl::StatusOr<TrainState> ReadTrainState(const std::string& path,
                                          const std::vector<StatePart>& parts);

// The same from the files of all ranks of a set, in the order of ranks, whatever parts each of them
// held: another number of ranks goes on from it. Its facts are those of the first file; `pending`
// has the pieces of all ranks; the tokens of carried local steps are those of all ranks together.
// FAILED_PRECONDITION also: files that one trainer group did not make.
absl::StatusOr<TrainState> ReadTrainStates(const std::vector<std::string>& paths,
                                           const std::vector<StatePart>& parts);

}  // namespace isthmus
