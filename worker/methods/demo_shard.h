// Method `demo`: momentum residual, encode with reserve, settle.
//
// Per round (algorithm page "One DeMo step", arXiv 2411.19870; reserve and settle are ours):
//   Encode   d <- beta*d + eta*g;  chunks -> DCT -> top-k -> pieces;  d <- d - alpha*decode(sent),
//            which stays on the pending list as sent
//            (values rounded as codec.numbers says; of SIGN1, which sends no magnitude, `sent` is
//            here what was selected, and is kept beside the pieces)
//   Settle   included: the pending entry is dropped
//            left out:  d <- d + (product of the betas since * alpha) * decode(sent)
//   Apply    u <- sign(decode(merged)), then the base step (worker/methods/update_step.h)
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "worker/methods/method.h"

namespace isthmus {

class DemoShard : public Method {
 public:
  // See MakeMethod.
  static absl::StatusOr<DemoShard> Make(const MethodOptions& options,
                                        const std::vector<TensorPart<const float>>& parts);

  // Lines 3 to 7 of the algorithm page. Refuses also (INVALID_ARGUMENT) a gradient that would bring
  // the momentum above kMomentumMax.
  absl::StatusOr<std::vector<std::string>> Encode(
      uint64_t round, float eta, const std::vector<TensorPart<const float>>& gradients) override;
  void Settle(uint64_t round, bool included) override;
  absl::Status Apply(const UpdateRates& rates, absl::Span<const std::string* const> update,
                     const std::vector<TensorPart<float>>& parameters) override;
  MethodState State() const override;
  absl::Status SetState(MethodState state) override;
  // y <- y - look * lr_s * u, with u the sign of decode(sent of round s) or, with the sign off,
  // that itself.
  absl::Status LookAhead(float look,
                         const std::vector<TensorPart<float>>& parameters) const override;
  const std::vector<std::string>* Sent(uint64_t round) const override;
  bool keeps_own() const override { return true; }
  double ResidualSquares() const override;
  void DropResidual() override;

  // Momentum residual of the parts, in the order of Make.
  absl::Span<const float> residual(size_t part) const { return residual_[part]; }
  // Rounds encoded and not settled yet.
  size_t pending_rounds() const { return pending_.size(); }

 protected:
  using Method::Method;
  // Allocates the residual of parts held.
  void MakeResidual();
  struct Pending {
    std::vector<std::string> pieces;  // as sent
    float decay = 1.0f;               // product of the betas applied to the residual since
    float lr = 0.0f;                  // of its round
    // What left the residual, as MERGED pieces, where `pieces` do not tell: SIGN1.
    std::vector<std::string> taken;
  };

  // Lines 3 to 7 of all blocks: what to send in `round`.
  virtual Pending EncodeBlocks(uint64_t round, float eta,
                               const std::vector<absl::Span<const float>>& data);
  // Decodes what was sent of a chunk: `x` has the chunk's elements, row-major. Thread-safe.
  using Decoder =
      std::function<void(const ChunkPlace& place, const Components& sent, absl::Span<float> x)>;
  // Of what was sent in `round`.
  virtual Decoder DecoderOf(uint64_t round) const;

  std::vector<std::vector<float>> residual_;  // [part]

 private:
  absl::Status CheckGradients(float eta, const std::vector<absl::Span<const float>>& data) const;
  // Lines 3 to 7 for one block; `components` has a place for each chunk held.
  void EncodeBlock(const HeldBlock& held, float eta, absl::Span<const float> gradient,
                   std::vector<Components>* components);
  void GiveBack(uint64_t round, const Pending& pending);
  // Calls `use` with the decoded values of every chunk in `pieces` of `round`, and where the chunk
  // lies in its part; from several threads.
  using UseChunk = std::function<void(const ChunkPlace& place, uint32_t part, uint64_t offset,
                                      absl::Span<float> values)>;
  void ForEachChunkOf(uint64_t round, const std::vector<std::string>& pieces,
                      const UseChunk& use) const;

  std::map<uint64_t, Pending> pending_;  // by round; at most kPendingRoundsMax
};

}  // namespace isthmus
