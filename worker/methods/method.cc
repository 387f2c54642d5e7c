#include "worker/methods/method.h"

#include <utility>

#include "base/status_macros.h"
#include "spec/rows.h"
#include "worker/methods/demo_shard.h"
#include "worker/methods/gradient_shard.h"
#include "worker/methods/outer_shard.h"
#include "worker/methods/rows_shard.h"

namespace isthmus {

void Method::TakeSpec(const v1::RunSpec& spec) {
  options_.codec = spec.codec();
  options_.optimizer = spec.optimizer();
  step_.TakeSpec(spec.codec(), spec.optimizer());
}

absl::Status Method::StepAlone(const UpdateRates& rates,
                               const std::vector<TensorPart<const float>>& gradients,
                               const std::vector<TensorPart<float>>& parameters) {
  ISTHMUS_ASSIGN_OR_RETURN(const std::vector<absl::Span<const float>> data,
                           held_->MatchParts(gradients));
  std::vector<std::vector<float>> own;
  for (size_t i = 0; i < data.size(); ++i) {
    own.emplace_back(data[i].begin(), data[i].end());
    own.back().resize(held_->parts()[i].elements);  // zeros where there is none
  }
  return step_.ApplyOwn(rates, own, parameters);
}

MethodState Method::State() const {
  MethodState state;
  state.step = step_.state();
  return state;
}

Sections Method::StateSections(const std::vector<TensorPart<const float>>& parameters) const {
  Sections sections(1);
  for (const TensorPart<const float>& part : parameters) sections[0].push_back(part.data);
  const uint32_t arrays = step_.arrays();
  if (arrays > 0) {
    sections.emplace_back(step_.first_moments().begin(), step_.first_moments().end());
  }
  if (arrays > 1) {
    sections.emplace_back(step_.second_moments().begin(), step_.second_moments().end());
  }
  return sections;
}

absl::StatusOr<std::unique_ptr<Method>> MakeMethod(
    const MethodOptions& options, const std::vector<TensorPart<const float>>& parts) {
  if (options.outer.has_value()) {
    ISTHMUS_ASSIGN_OR_RETURN(OuterShard shard, OuterShard::Make(options, parts));
    return std::unique_ptr<Method>(new OuterShard(std::move(shard)));
  }
  if (SendsRows(options.codec)) {
    ISTHMUS_ASSIGN_OR_RETURN(RowsShard shard, RowsShard::Make(options, parts));
    return std::unique_ptr<Method>(new RowsShard(std::move(shard)));
  }
  if (options.codec.kind() == v1::CODEC_KIND_DEMO) {
    ISTHMUS_ASSIGN_OR_RETURN(DemoShard shard, DemoShard::Make(options, parts));
    return std::unique_ptr<Method>(new DemoShard(std::move(shard)));
  }
  ISTHMUS_ASSIGN_OR_RETURN(GradientShard shard, GradientShard::Make(options, parts));
  return std::unique_ptr<Method>(new GradientShard(std::move(shard)));
}

}  // namespace isthmus
