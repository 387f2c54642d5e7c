// A small model, random tensors for it, and the exchange between shards, for tests of methods.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "spec/grid.h"
#include "worker/held_part.h"
#include "worker/methods/demo_shard.h"
#include "worker/shard_plan.h"

namespace isthmus {

using Shape = std::vector<uint64_t>;
// The whole of every tensor, by its number.
using Tensors = std::vector<std::vector<float>>;

v1::CodecSpec CompleteCodec(v1::CodecSpec codec = {});
// Tensors "t0", "t1", ...
Grid MakeGrid(const std::vector<Shape>& shapes, const v1::CodecSpec& codec);

Tensors RandomTensors(const Grid& grid, uint32_t seed);
Tensors ZeroTensors(const Grid& grid);

// Parts that hold all of every tensor.
std::vector<TensorPart<const float>> WholeParts(const Tensors& tensors);
std::vector<TensorPart<float>> WholeParts(Tensors* tensors);

// One unit per two tensors, cut over `ranks`.
std::vector<UnitPlan> PlanOf(const Grid& grid, uint32_t ranks);
// What one rank holds of `tensors`.
std::vector<TensorPart<const float>> RankParts(const std::vector<UnitPlan>& plan, uint32_t rank,
                                               const Tensors& tensors);
std::vector<TensorPart<float>> RankParts(const std::vector<UnitPlan>& plan, uint32_t rank,
                                         Tensors* tensors);

DemoShard MakeShard(const Grid& grid, const v1::CodecSpec& codec,
                    const std::vector<TensorPart<const float>>& parts, int threads = 1,
                    size_t piece_bytes_max = 0);

std::vector<const std::string*> Pointers(const std::vector<std::string>& pieces);

// The merged update of complete contributions, given in ascending node name.
std::vector<std::string> Merge(const Grid& grid,
                               const std::vector<std::vector<std::string>>& contributions,
                               size_t piece_bytes_max);

}  // namespace isthmus
