// Methods without a residual, the baselines of every comparison:
//   `full`  sends the gradient as it is; what comes back is its mean over the nodes
//   `none`  sends nothing; each node steps with its own gradient, and the rounds only keep count
// (algorithm page section 8, "full" and "none").
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "worker/methods/method.h"

namespace isthmus {

class GradientShard : public Method {
 public:
  // See MakeMethod; the codec's kind is CODEC_KIND_DENSE or CODEC_KIND_NONE.
  static absl::StatusOr<GradientShard> Make(const MethodOptions& options,
                                            const std::vector<TensorPart<const float>>& parts);

  absl::StatusOr<std::vector<std::string>> Encode(
      uint64_t round, float lr, const std::vector<TensorPart<const float>>& gradients) override;
  // A gradient that was left out is dropped: the next one is of newer parameters.
  void Settle(uint64_t round, bool included) override;
  // `none`: steps with the gradient of the round settled last as included, if there is one.
  absl::Status Apply(const UpdateRates& rates, absl::Span<const std::string* const> update,
                     const std::vector<TensorPart<float>>& parameters) override;
  // A step with one's own gradient is part of what one holds.
  bool keeps_own() const override { return options_.drifts; }

 private:
  using Values = std::vector<std::vector<float>>;  // [part]

  using Method::Method;
  // Copies the gradient, zeros where a part is missing.
  absl::StatusOr<Values> CopyGradients(const std::vector<TensorPart<const float>>& gradients) const;
  void AppendBlock(const HeldBlock& held, const Values& values,
                   std::vector<Components>* components) const;

  std::map<uint64_t, Values> pending_;  // by round; at most kPendingRoundsMax; empty with `full`
  std::optional<Values> own_;           // settled and not applied yet
};

}  // namespace isthmus
