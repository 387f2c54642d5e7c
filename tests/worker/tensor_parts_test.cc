// Case C14: tensors that are not contiguous give the right answer or a clean error.

#include "worker/tensor_parts.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <vector>

namespace isthmus {
namespace {

Grid OneTensor(std::vector<uint64_t> shape) {
  v1::Manifest manifest;
  v1::TensorSpec* tensor = manifest.add_tensors();
  tensor->set_name("w");
  tensor->set_dtype(v1::DTYPE_FLOAT32);
  for (uint64_t size : shape) tensor->add_shape(size);
  v1::CodecSpec codec;
  codec.set_kind(v1::CODEC_KIND_DEMO);
  codec.set_chunk_rule(v1::CHUNK_RULE_TILES);
  codec.set_chunk_side(4);
  codec.set_matrix_density(1);
  codec.set_vector_density(1);
  codec.set_beta(0.9f);
  codec.set_alpha(1);
  codec.set_sign(true);
  auto grid = Grid::Make(manifest, codec);
  EXPECT_TRUE(grid.ok()) << grid.status();
  return *std::move(grid);
}

at::Tensor Numbers(at::IntArrayRef shape) {
  int64_t elements = 1;
  for (int64_t size : shape) elements *= size;
  return at::arange(elements, at::kFloat).view(shape);
}

// Row-major values, one by one through the tensor's own strides.
std::vector<float> RowMajor(const at::Tensor& tensor) {
  std::vector<float> values;
  const at::Tensor flat = tensor.reshape({-1});
  for (int64_t i = 0; i < flat.numel(); ++i) values.push_back(flat[i].item<float>());
  return values;
}

struct Case {
  const char* name;
  at::Tensor tensor;
};

std::vector<Case> StridedCases() {
  return {
      {"contiguous", Numbers({6, 8})},
      {"transposed", Numbers({8, 6}).t()},
      {"rows sliced", Numbers({20, 8}).narrow(0, 5, 6)},
      {"columns sliced", Numbers({6, 30}).narrow(1, 3, 8)},
      {"every second column", Numbers({6, 16}).slice(1, 0, 16, 2)},
      {"transposed slice", Numbers({30, 6}).narrow(0, 3, 8).t()},
      {"channels last", Numbers({2, 3, 2, 4}).contiguous(at::MemoryFormat::ChannelsLast)},
  };
}

TEST(TensorParts, ReadsRowMajorValuesOfAnyStrides) {
  for (const Case& c : StridedCases()) {
    std::vector<uint64_t> shape(c.tensor.sizes().begin(), c.tensor.sizes().end());
    const Grid grid = OneTensor(shape);
    auto readable = TensorForReading(grid, 0, 0, c.tensor);
    ASSERT_TRUE(readable.ok()) << c.name << ": " << readable.status();
    const auto part = readable->part();
    EXPECT_EQ(std::vector<float>(part.data.begin(), part.data.end()), RowMajor(c.tensor)) << c.name;
  }
}

TEST(TensorParts, ReadsAnExpandedTensor) {
  const at::Tensor expanded = Numbers({6, 1}).expand({6, 8});
  auto readable = TensorForReading(OneTensor({6, 8}), 0, 0, expanded);
  ASSERT_TRUE(readable.ok()) << readable.status();
  const auto part = readable->part();
  EXPECT_EQ(std::vector<float>(part.data.begin(), part.data.end()), RowMajor(expanded));
}

TEST(TensorParts, WritesBackThroughAnyStrides) {
  for (const Case& c : StridedCases()) {
    std::vector<uint64_t> shape(c.tensor.sizes().begin(), c.tensor.sizes().end());
    std::vector<float> expected = RowMajor(c.tensor);
    for (float& value : expected) value = 2 * value + 1;
    const Grid grid = OneTensor(shape);
    auto updatable = TensorForUpdate(grid, 0, 0, c.tensor);
    ASSERT_TRUE(updatable.ok()) << c.name << ": " << updatable.status();
    for (float& value : updatable->part().data) value = 2 * value + 1;
    updatable->WriteBack();
    EXPECT_EQ(RowMajor(c.tensor), expected) << c.name;
  }
}

TEST(TensorParts, LeavesTheRestOfASlicedTensorAlone) {
  at::Tensor whole = at::zeros({6, 30}, at::kFloat);
  auto updatable = TensorForUpdate(OneTensor({6, 8}), 0, 0, whole.narrow(1, 3, 8));
  ASSERT_TRUE(updatable.ok());
  for (float& value : updatable->part().data) value = 1;
  updatable->WriteBack();
  EXPECT_EQ(whole.sum().item<float>(), 48);
  EXPECT_EQ(whole.narrow(1, 3, 8).sum().item<float>(), 48);
}

TEST(TensorParts, RefusesToUpdateElementsThatShareMemory) {
  const Grid grid = OneTensor({6, 8});
  const at::Tensor expanded = Numbers({6, 1}).expand({6, 8});
  const at::Tensor windows = Numbers({13}).as_strided({6, 8}, {1, 1});
  for (const at::Tensor& tensor : {expanded, windows}) {
    const auto updatable = TensorForUpdate(grid, 0, 0, tensor);
    EXPECT_EQ(updatable.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(updatable.status().message().find("'w' has elements that share memory"),
              std::string::npos);
  }
}

TEST(TensorParts, RefusesOtherTypesDevicesAndSizes) {
  const Grid grid = OneTensor({6, 8});
  const auto why = [&](const at::Tensor& tensor) {
    return std::string(TensorForReading(grid, 0, 0, tensor).status().message());
  };
  EXPECT_NE(why(Numbers({6, 8}).to(at::kBFloat16)).find("dtype BFloat16"), std::string::npos);
  EXPECT_NE(why(Numbers({6, 8}).to(at::kDouble)).find("dtype Double"), std::string::npos);
  EXPECT_NE(why(Numbers({6, 8}).to(at::kMeta)).find("device meta"), std::string::npos);
  EXPECT_NE(why(Numbers({6, 8}).to_sparse()).find("only strided"), std::string::npos);
  EXPECT_NE(why(at::Tensor()).find("undefined"), std::string::npos);
  EXPECT_NE(why(Numbers({7, 8})).find("48 elements"), std::string::npos);
  EXPECT_EQ(TensorForReading(grid, 1, 0, Numbers({6, 8})).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace isthmus
