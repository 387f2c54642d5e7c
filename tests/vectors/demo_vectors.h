// Compares this implementation with recorded numbers of the published DeMo and FlexDeMo code. The
// form of the recordings is described in tests/vectors/README.md; any folder of that form will do.
#pragma once

#include <vector>

#include "tests/vectors/comparison.h"
#include "tests/vectors/vector_file.h"

namespace isthmus {

// Everything in the file: one comparison a group, compared or skipped with a reason.
std::vector<Comparison> CheckDemoVectors(const VectorFile& file);

// Its parts.
Comparison CheckDctBasis(const VectorFile& file);
Comparison CheckChunkSplit(const VectorFile& file);
std::vector<Comparison> CheckCodec(const VectorFile& file);
std::vector<Comparison> CheckMultiNodeDecode(const VectorFile& file);
// Runs of trajectories.json with arrays in FILE.npz; start values and gradients are in
// trajectory_inputs.npz.
std::vector<Comparison> CheckTrajectories(const VectorFile& file);
// FILE is fsdp_hybrid_RxS.npz.
Comparison CheckFsdpHybrid(const VectorFile& file, const std::string& name);

}  // namespace isthmus
