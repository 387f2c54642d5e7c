// A method that goes on from another one's state goes on as that one would, and the digest of a
// contribution whose pieces lie on several ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/sha256.h"
#include "spec/piece.h"
#include "tests/worker/method_fixture.h"
#include "worker/contribution_digest.h"

namespace isthmus {
namespace {

const std::vector<Shape>& Shapes() {
  static const auto* const shapes = new std::vector<Shape>{{70, 100}, {5000}, {3, 5}, {64, 64}};
  return *shapes;
}

std::unique_ptr<Method> Make(const Grid& grid, const v1::CodecSpec& codec, v1::BaseOptimizer base,
                             const std::vector<TensorPart<const float>>& parts) {
  MethodOptions options;
  options.grid = &grid;
  options.codec = codec;
  options.optimizer.set_base(base);
  options.optimizer.set_beta1(0.9f);
  options.optimizer.set_beta2(0.95f);
  options.optimizer.set_eps(1e-8f);
  auto method = MakeMethod(options, parts);
  EXPECT_TRUE(method.ok()) << method.status();
  return *std::move(method);
}

// One round: encode, settle, apply.
void Step(Method* method, const Grid& grid, uint64_t round, bool included, Tensors* parameters) {
  const Tensors gradients = RandomTensors(grid, static_cast<uint32_t>(round));
  const auto pieces = method->Encode(round, 0.01f, WholeParts(gradients));
  ASSERT_TRUE(pieces.ok()) << pieces.status();
  method->Settle(round, included);
  const std::vector<std::string> update = Merge(grid, {*pieces}, 100000);
  ASSERT_TRUE(method->Apply({0.01f, 0.1f, 1.0f}, Pointers(update), WholeParts(parameters)).ok());
}

TEST(MethodState, GoesOnAsTheOtherWould) {
  const v1::CodecSpec codec = CompleteCodec();
  const Grid grid = MakeGrid(Shapes(), codec);
  for (const auto base : {v1::BASE_OPTIMIZER_SGD, v1::BASE_OPTIMIZER_ADAMW}) {
    Tensors parameters = RandomTensors(grid, 100);
    const auto method = Make(grid, codec, base, WholeParts(std::as_const(parameters)));
    for (uint64_t round = 1; round <= 3; ++round) {
      Step(method.get(), grid, round, round != 2, &parameters);
    }
    // One contribution is under way when the state is taken.
    const Tensors gradients = RandomTensors(grid, 50);
    ASSERT_TRUE(method->Encode(4, 0.01f, WholeParts(gradients)).ok());

    Tensors copied = parameters;
    const auto copy = Make(grid, codec, base, WholeParts(std::as_const(copied)));
    ASSERT_TRUE(copy->SetState(method->State()).ok());
    EXPECT_EQ(copy->ResidualSquares(), method->ResidualSquares());
    for (Method* each : {method.get(), copy.get()}) {
      Tensors* own = each == copy.get() ? &copied : &parameters;
      each->Settle(4, false);  // given back
      for (uint64_t round = 5; round <= 6; ++round) Step(each, grid, round, true, own);
    }
    EXPECT_EQ(copied, parameters);
    const MethodState one = method->State(), other = copy->State();
    EXPECT_EQ(one.residual, other.residual);
    EXPECT_EQ(one.step.first_moments, other.step.first_moments);
    EXPECT_EQ(one.step.second_moments, other.step.second_moments);
    EXPECT_EQ(one.step.beta1_power, other.step.beta1_power);
    EXPECT_TRUE(other.pending.empty());
  }
}

TEST(MethodState, OfOtherPartsIsRefused) {
  const v1::CodecSpec codec = CompleteCodec();
  const Grid grid = MakeGrid(Shapes(), codec);
  const Tensors tensors = RandomTensors(grid, 1);
  const auto method = Make(grid, codec, v1::BASE_OPTIMIZER_ADAMW, WholeParts(tensors));
  MethodState state = method->State();
  state.residual[1].pop_back();
  EXPECT_EQ(method->SetState(state).code(), absl::StatusCode::kInvalidArgument);
  state = method->State();
  state.step.second_moments.pop_back();
  EXPECT_EQ(method->SetState(state).code(), absl::StatusCode::kInvalidArgument);
  state = method->State();
  state.pending.push_back({1, 1.0f, {"no piece"}, 0.0f, {}});
  EXPECT_EQ(method->SetState(state).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(method->SetState(method->State()).ok());
}

TEST(MethodState, DroppingForgetsWhatIsPendingToo) {
  const v1::CodecSpec codec = CompleteCodec();
  const Grid grid = MakeGrid(Shapes(), codec);
  const Tensors tensors = RandomTensors(grid, 1);
  const auto method = Make(grid, codec, v1::BASE_OPTIMIZER_SGD, WholeParts(tensors));
  ASSERT_TRUE(method->Encode(1, 0.01f, WholeParts(tensors)).ok());
  EXPECT_GT(method->ResidualSquares(), 0);
  method->DropResidual();
  method->Settle(1, false);
  EXPECT_EQ(method->ResidualSquares(), 0);
}

TEST(ContributionDigest, OfRanksIsThatOfTheWhole) {
  const v1::CodecSpec codec = CompleteCodec();
  const Grid grid = MakeGrid(Shapes(), codec);
  const Tensors gradients = RandomTensors(grid, 3);
  for (const size_t piece_bytes : {200, 100000}) {  // small ones cut blocks
    DemoShard whole = MakeShard(grid, codec, WholeParts(gradients), 1, piece_bytes);
    const auto pieces = whole.Encode(1, 0.01f, WholeParts(gradients));
    ASSERT_TRUE(pieces.ok());
    const auto digest = PayloadDigest(grid, Pointers(*pieces));
    ASSERT_TRUE(digest.ok());
    for (const uint32_t ranks : {1, 3}) {
      std::string joined(grid.blocks().size() * kSha256Bytes, '\0');
      const auto plan = PlanOf(grid, ranks);
      for (uint32_t rank = 0; rank < ranks; ++rank) {
        const auto parts = RankParts(plan, rank, gradients);
        DemoShard shard = MakeShard(grid, codec, parts, 1, piece_bytes);
        const auto own = BlockHashes(grid, *shard.Encode(1, 0.01f, parts));
        ASSERT_TRUE(own.ok()) << own.status();
        for (size_t i = 0; i < joined.size(); ++i) joined[i] |= (*own)[i];
      }
      EXPECT_EQ(DigestOfBlocks(joined), *digest) << ranks;
    }
    std::vector<std::string> lacking = *pieces;
    lacking.pop_back();
    const auto refused = BlockHashes(grid, lacking);
    EXPECT_TRUE(!refused.ok() || DigestOfBlocks(*refused) != *digest);
  }
}

}  // namespace
}  // namespace isthmus
