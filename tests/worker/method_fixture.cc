#include "tests/worker/method_fixture.h"

#include <gtest/gtest.h>

#include <random>

#include "base/limits.h"
#include "kernels/demo.h"
#include "spec/piece.h"
#include "spec/run_spec.h"

namespace isthmus {
namespace {

template <typename T, typename Source>
std::vector<TensorPart<T>> PartsOfRank(const std::vector<UnitPlan>& plan, uint32_t rank,
                                       Source* tensors) {
  std::vector<TensorPart<T>> parts;
  for (const UnitPlan& unit : plan) {
    for (const ShardSlice& slice : unit.slices[rank]) {
      absl::Span<T> whole((*tensors)[slice.tensor]);
      parts.push_back(
          {slice.tensor, slice.first_element, whole.subspan(slice.first_element, slice.elements)});
    }
  }
  return parts;
}

}  // namespace

v1::CodecSpec CompleteCodec(v1::CodecSpec codec) {
  const absl::Status status = CompleteCodecSpec(&codec);
  EXPECT_TRUE(status.ok()) << status;
  return codec;
}

Grid MakeGrid(const std::vector<Shape>& shapes, const v1::CodecSpec& codec) {
  v1::Manifest manifest;
  for (size_t i = 0; i < shapes.size(); ++i) {
    v1::TensorSpec* tensor = manifest.add_tensors();
    tensor->set_name("t" + std::to_string(i));
    tensor->set_dtype(v1::DTYPE_FLOAT32);
    for (uint64_t size : shapes[i]) tensor->add_shape(size);
  }
  absl::StatusOr<Grid> grid = Grid::Make(manifest, codec);
  EXPECT_TRUE(grid.ok()) << grid.status();
  return *std::move(grid);
}

Tensors RandomTensors(const Grid& grid, uint32_t seed) {
  std::mt19937 random(seed);
  Tensors tensors = ZeroTensors(grid);
  for (std::vector<float>& tensor : tensors) {
    for (float& value : tensor) value = static_cast<float>(random() % 20001) / 10000.0f - 1.0f;
  }
  return tensors;
}

Tensors ZeroTensors(const Grid& grid) {
  Tensors tensors;
  for (uint32_t t = 0; t < grid.tensors(); ++t) tensors.emplace_back(grid.tensor_elements(t));
  return tensors;
}

std::vector<TensorPart<const float>> WholeParts(const Tensors& tensors) {
  std::vector<TensorPart<const float>> parts;
  for (uint32_t t = 0; t < tensors.size(); ++t) parts.push_back({t, 0, tensors[t]});
  return parts;
}

std::vector<TensorPart<float>> WholeParts(Tensors* tensors) {
  std::vector<TensorPart<float>> parts;
  for (uint32_t t = 0; t < tensors->size(); ++t) {
    parts.push_back({t, 0, absl::MakeSpan((*tensors)[t])});
  }
  return parts;
}

std::vector<UnitPlan> PlanOf(const Grid& grid, uint32_t ranks) {
  std::vector<UnitTensors> units;
  for (uint32_t t = 0; t < grid.tensors(); ++t) {
    if (t % 2 == 0) units.push_back({"unit" + std::to_string(t / 2), {}});
    units.back().tensors.push_back(t);
  }
  absl::StatusOr<std::vector<UnitPlan>> plan = MakeShardPlan(grid, units, ranks);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *std::move(plan);
}

std::vector<TensorPart<const float>> RankParts(const std::vector<UnitPlan>& plan, uint32_t rank,
                                               const Tensors& tensors) {
  return PartsOfRank<const float>(plan, rank, &tensors);
}

std::vector<TensorPart<float>> RankParts(const std::vector<UnitPlan>& plan, uint32_t rank,
                                         Tensors* tensors) {
  return PartsOfRank<float>(plan, rank, tensors);
}

DemoShard MakeShard(const Grid& grid, const v1::CodecSpec& codec,
                    const std::vector<TensorPart<const float>>& parts, int threads,
                    size_t piece_bytes_max) {
  MethodOptions options;
  options.optimizer.set_base(v1::BASE_OPTIMIZER_SGD);
  options.grid = &grid;
  options.codec = codec;
  options.threads = threads;
  options.piece_bytes_max = piece_bytes_max;
  absl::StatusOr<DemoShard> shard = DemoShard::Make(options, parts);
  EXPECT_TRUE(shard.ok()) << shard.status();
  return *std::move(shard);
}

std::vector<const std::string*> Pointers(const std::vector<std::string>& pieces) {
  std::vector<const std::string*> pointers;
  for (const std::string& piece : pieces) pointers.push_back(&piece);
  return pointers;
}

std::vector<std::string> Merge(const Grid& grid,
                               const std::vector<std::vector<std::string>>& contributions,
                               size_t piece_bytes_max) {
  std::vector<std::vector<Components>> nodes;
  for (const auto& pieces : contributions) {
    nodes.emplace_back(grid.chunks());
    for (const std::string& bytes : pieces) {
      const absl::StatusOr<PieceView> piece = OpenPiece(grid, bytes);
      EXPECT_TRUE(piece.ok()) << piece.status();
      const absl::Status status =
          ForEachChunk(grid, *piece, [&](uint64_t chunk, const Components& components) {
            nodes.back()[chunk] = components;
            return absl::OkStatus();
          });
      EXPECT_TRUE(status.ok()) << status;
    }
  }
  PieceWriter writer(&grid, UpdateLayout(grid.codec()), piece_bytes_max);
  for (uint64_t chunk = 0; chunk < grid.chunks(); ++chunk) {
    std::vector<const Components*> senders;
    for (const auto& node : nodes) senders.push_back(&node[chunk]);
    Components merged;
    MergeBySenders(senders, grid.Place(chunk).shape.elements(), &merged);
    writer.Append(chunk, merged);
  }
  return writer.Finish();
}

}  // namespace isthmus
