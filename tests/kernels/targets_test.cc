// One whole update on every target: the parameters come out with the same bits (design rule 18).
#include "kernels/targets.h"

#include <algorithm>
#include <cstring>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "base/sha256.h"
#include "gtest/gtest.h"
#include "kernels/demo.h"
#include "kernels/reference/reference.h"

namespace isthmus {
namespace {

constexpr uint32_t kSide = 64;

// Numbers that are the same on every machine and with every library.
class Lcg {
 public:
  uint32_t Next() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>(state_ >> 33);
  }
  // In [-1, 1), 24 bits of it: exact in float32.
  float Uniform() {
    return static_cast<float>(static_cast<int32_t>(Next() >> 7) - 0x800000) / 0x800000;
  }

 private:
  uint64_t state_ = 20241129;
};

struct Tensor {
  uint32_t rows;
  uint32_t cols;
  std::vector<float> p;
  std::vector<float> m;
  std::vector<float> v;
};

// Matrices with whole and ragged tiles, vectors with whole and ragged runs, a single number.
std::vector<Tensor> Tensors(Lcg* numbers) {
  std::vector<Tensor> tensors = {
      {128, 192, {}, {}, {}}, {130, 77, {}, {}, {}}, {37, 53, {}, {}, {}}, {1, 1000, {}, {}, {}},
      {1, 64, {}, {}, {}},    {1, 1, {}, {}, {}},    {3, 640, {}, {}, {}}, {97, 1, {}, {}, {}}};
  for (Tensor& tensor : tensors) {
    tensor.p.resize(size_t{tensor.rows} * tensor.cols);
    for (float& value : tensor.p) value = numbers->Uniform();
    tensor.m.resize(tensor.p.size());
    tensor.v.resize(tensor.p.size());
  }
  return tensors;
}

Components Sent(uint32_t elements, uint32_t count, Lcg* numbers) {
  Components sent;
  for (uint32_t at = 0; at < elements && sent.size() < count; ++at) {
    if (numbers->Next() % elements >= 2 * count) continue;
    sent.index.push_back(at);
    sent.value.push_back(numbers->Uniform());
  }
  return sent;
}

// From three senders' components to the parameters, chunk by chunk: merge, decode, sign, step; then
// one step without the sign and one of AdamW.
void Update(bool plain, ChunkShape shape, float* p, size_t stride, ChunkScratch* scratch,
            Lcg* numbers) {
  const auto step = plain ? reference::StepChunk : StepChunk;
  std::vector<Components> senders;
  for (uint32_t k : {32u, 8u, 40u}) senders.push_back(Sent(shape.elements(), k, numbers));
  Components merged;
  MergeBySenders({&senders[0], &senders[1], &senders[2]}, shape.elements(), &merged);
  StepRule rule;
  rule.eta = 0.004f;
  rule.decay_factor = DecayFactor(rule.eta, 0.1f);
  step(shape, rule, merged, p, stride, scratch);
  rule.sign = false;
  step(shape, rule, merged, p, stride, scratch);
}

std::string HashOfAnUpdate(bool plain) {
  Lcg numbers;
  std::vector<Tensor> tensors = Tensors(&numbers);
  const auto scratch = std::make_unique<ChunkScratch>();
  Sha256 hash;
  for (Tensor& tensor : tensors) {
    for (uint32_t row = 0; row < tensor.rows; row += kSide) {
      for (uint32_t col = 0; col < tensor.cols; col += kSide) {
        const ChunkShape shape{std::min(kSide, tensor.rows - row),
                               std::min(kSide, tensor.cols - col)};
        Update(plain, shape, tensor.p.data() + size_t{row} * tensor.cols + col, tensor.cols,
               scratch.get(), &numbers);
      }
    }
    std::vector<float> u(tensor.p.size());
    for (float& value : u) value = numbers.Uniform();
    AdamWRule rule;
    rule.eta = 0.006f;
    rule.decay_factor = DecayFactor(rule.eta, 0.1f);
    rule.bias1 = 1.0f - rule.beta1;
    rule.bias2 = 1.0f - rule.beta2;
    (plain ? reference::AdamWStep : AdamWStep)(rule, u, absl::MakeSpan(tensor.p),
                                               absl::MakeSpan(tensor.m), absl::MakeSpan(tensor.v));
    for (const std::vector<float>* values : {&tensor.p, &tensor.m, &tensor.v}) {
      hash.Update(values->data(), values->size() * sizeof(float));
    }
  }
  return absl::BytesToHexString(hash.Finish());
}

// What the plain functions gave when this test was written. It only changes with a change of the
// stated order of operations, which breaks every run that mixes old and new nodes.
constexpr char kRecorded[] = "048a7cd1f1acaa9575701b6ebfb9ab239eedd98d4ac8e23aa4a019f032e9249f";

TEST(Targets, OneUpdateHasTheSameHashOnAll) {
  EXPECT_EQ(HashOfAnUpdate(/*plain=*/true), kRecorded);
  const std::vector<std::string> targets = KernelTargets();
  ASSERT_FALSE(targets.empty());
  for (const std::string& target : targets) {
    ForceKernelTarget(target);
    const std::string hash = HashOfAnUpdate(/*plain=*/false);
    std::cout << "target " << target << ": parameters and moments have SHA-256 " << hash
              << std::endl;
    EXPECT_EQ(hash, kRecorded) << target;
  }
  ForceKernelTarget("");
  EXPECT_EQ(KernelTarget(), targets[0]);
}

}  // namespace
}  // namespace isthmus
