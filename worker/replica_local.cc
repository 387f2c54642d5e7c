// What a rank holds with local steps: its own parameters in the model, and x in the method.
#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/status_macros.h"
#include "kernels/number_format.h"
#include "spec/rounds.h"
#include "worker/methods/outer_shard.h"
#include "worker/replica.h"

namespace isthmus {

bool TakesLocalSteps(const v1::RunSpec& spec) {
  return IsOuter(spec) && spec.source() == v1::SOURCE_PARAM_DELTA;
}

absl::Status Replica::StepAlone(const UpdateRates& rates, double scale) {
  if (scale != 1.0) model_->ScaleGradients(static_cast<float>(scale));
  ISTHMUS_RETURN_IF_ERROR(method_->StepAlone(rates, model_->gradients(), model_->parameters()));
  model_->ParametersChanged();
  return absl::OkStatus();
}

absl::Status Replica::LocalStep(float lr, double scale) {
  if (scale != 1.0) model_->ScaleGradients(static_cast<float>(scale));
  ISTHMUS_RETURN_IF_ERROR(inner_->Step(lr, model_->gradients(), model_->parameters()));
  model_->ParametersChanged();
  return absl::OkStatus();
}

int Replica::NonFiniteDelta() {
  const std::vector<TensorPart<const float>> own = AsConst(model_->parameters());
  const Sections sections = method_->StateSections(own);
  for (size_t i = 0; i < own.size(); ++i) {
    const absl::Span<const float> x = sections[0][i];
    for (size_t e = 0; e < x.size(); ++e) {
      // Also where one of the two is not finite.
      if (!(std::abs(x[e] - own[i].data[e]) <= kNumberMax)) return static_cast<int>(own[i].tensor);
    }
  }
  return -1;
}

absl::StatusOr<std::vector<std::string>> Replica::EncodeLocal(uint64_t round, float lr) {
  return method_->Encode(round, lr, AsConst(model_->parameters()));
}

absl::Status Replica::DropWork() {
  ISTHMUS_RETURN_IF_ERROR(outer()->DropWork(model_->parameters()));
  model_->ParametersChanged();
  if (inner_.has_value()) inner_->Reset();
  return absl::OkStatus();
}

void Replica::DropResidual() {
  method_->DropResidual();
  if (outer() == nullptr) return;
  ISTHMUS_CHECK(outer()->DropWork(model_->parameters()).ok());  // they are those it was made for
  model_->ParametersChanged();
}

absl::Status Replica::OnShared(const std::function<absl::Status()>& body) {
  if (!inner_.has_value()) return body();
  const std::vector<TensorPart<float>> parameters = model_->parameters();
  const Sections sections = method_->StateSections(AsConst(parameters));
  std::vector<std::vector<float>> own;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const absl::Span<float> data = parameters[i].data;
    own.emplace_back(data.begin(), data.end());
    std::copy(sections[0][i].begin(), sections[0][i].end(), data.begin());
  }
  model_->ParametersChanged();
  const absl::Status status = body();
  for (size_t i = 0; i < parameters.size(); ++i) {
    std::copy(own[i].begin(), own[i].end(), parameters[i].data.begin());
  }
  model_->ParametersChanged();
  return status;
}

}  // namespace isthmus
