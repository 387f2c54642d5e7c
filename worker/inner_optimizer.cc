#include "worker/inner_optimizer.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/parallel.h"
#include "base/status_macros.h"
#include "kernels/demo.h"
#include "spec/run_spec.h"

namespace isthmus {
namespace {

// Small enough that a large tensor keeps all threads busy and Lion's direction stays in the cache.
constexpr size_t kPieceElements = 16384;

}  // namespace

absl::StatusOr<InnerOptimizer> InnerOptimizer::Make(
    const InnerOptimizerOptions& options, const std::vector<TensorPart<const float>>& parts) {
  InnerOptimizer inner;
  std::vector<std::string> names;
  for (uint32_t t = 0; t < options.grid->tensors(); ++t) {
    names.push_back(options.grid->tensor_name(t));
  }
  ISTHMUS_ASSIGN_OR_RETURN(const std::vector<float> scales, DecayScales(options.optimizer, names));
  const v1::BaseOptimizer base = options.optimizer.base();
  for (const TensorPart<const float>& part : parts) {
    if (part.tensor >= scales.size()) {
      return absl::InvalidArgumentError(absl::StrCat("a part is of tensor number ", part.tensor,
                                                     "; the model has ", scales.size()));
    }
    const size_t elements = part.data.size();
    for (size_t begin = 0; begin < elements; begin += kPieceElements) {
      inner.pieces_.push_back(
          {inner.parts_.size(), begin, std::min(elements, begin + kPieceElements)});
    }
    inner.parts_.push_back({part.tensor, elements, scales[part.tensor]});
    if (base != v1::BASE_OPTIMIZER_SGD) inner.state_.first_moments.emplace_back(elements);
    if (base == v1::BASE_OPTIMIZER_ADAMW) inner.state_.second_moments.emplace_back(elements);
  }
  inner.TakeRates(options.optimizer);
  inner.threads_ = options.threads;
  return inner;
}

void InnerOptimizer::TakeRates(const v1::OptimizerSpec& optimizer) {
  optimizer_ = optimizer;
  lion_ = MakeLionRule(optimizer.beta1(), optimizer.beta2());
}

absl::Status InnerOptimizer::SetState(StepState state) {
  ISTHMUS_RETURN_IF_ERROR(
      CheckSameSizes("inner first moment", state_.first_moments, state.first_moments));
  ISTHMUS_RETURN_IF_ERROR(
      CheckSameSizes("inner second moment", state_.second_moments, state.second_moments));
  state_ = std::move(state);
  return absl::OkStatus();
}

void InnerOptimizer::Reset() {
  for (auto* moments : {&state_.first_moments, &state_.second_moments}) {
    for (std::vector<float>& part : *moments) std::fill(part.begin(), part.end(), 0.0f);
  }
  state_.beta1_power = state_.beta2_power = 1;
}

absl::Status InnerOptimizer::CheckStep(float lr,
                                       const std::vector<TensorPart<const float>>& gradients,
                                       const std::vector<TensorPart<float>>& parameters) const {
  if (!(lr >= 0.0f && std::isfinite(lr))) {
    return absl::InvalidArgumentError(
        absl::StrCat("the learning rate is ", lr, "; give a finite number, 0 or more"));
  }
  if (gradients.size() != parts_.size() || parameters.size() != parts_.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a step has the gradients of ", gradients.size(), " parts and the parameters of ",
        parameters.size(), "; ", parts_.size(), " are held"));
  }
  for (size_t i = 0; i < parts_.size(); ++i) {
    const Part& part = parts_[i];
    if (gradients[i].tensor == part.tensor && parameters[i].tensor == part.tensor &&
        gradients[i].data.size() == part.elements && parameters[i].data.size() == part.elements) {
      continue;
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "part ", i, " of a step has ", gradients[i].data.size(), " gradients of tensor ",
        gradients[i].tensor, " and ", parameters[i].data.size(), " parameters of tensor ",
        parameters[i].tensor, "; held are ", part.elements, " elements of tensor ", part.tensor));
  }
  return absl::OkStatus();
}

absl::Status InnerOptimizer::Step(float lr, const std::vector<TensorPart<const float>>& gradients,
                                  const std::vector<TensorPart<float>>& parameters) {
  ISTHMUS_RETURN_IF_ERROR(CheckStep(lr, gradients, parameters));
  state_.beta1_power *= static_cast<double>(optimizer_.beta1());
  state_.beta2_power *= static_cast<double>(optimizer_.beta2());
  AdamWRule rule;
  rule.beta1 = optimizer_.beta1();
  rule.beta2 = optimizer_.beta2();
  rule.eps = optimizer_.eps();
  rule.eta = lr;
  rule.bias1 = static_cast<float>(1.0 - state_.beta1_power);
  rule.bias2 = static_cast<float>(1.0 - state_.beta2_power);
  ParallelFor(pieces_.size(), threads_, [&](size_t i) {
    const Piece& piece = pieces_[i];
    const size_t size = piece.end - piece.begin;
    StepPiece(rule, piece, gradients[piece.part].data.subspan(piece.begin, size),
              parameters[piece.part].data.subspan(piece.begin, size));
  });
  return absl::OkStatus();
}

void InnerOptimizer::StepPiece(const AdamWRule& rule, const Piece& piece, absl::Span<const float> g,
                               absl::Span<float> p) {
  const float decay =
      DecayFactor(rule.eta, optimizer_.weight_decay() * parts_[piece.part].decay_scale);
  const auto moments = [&piece, &g](std::vector<std::vector<float>>* of) {
    return absl::MakeSpan((*of)[piece.part]).subspan(piece.begin, g.size());
  };
  if (optimizer_.base() == v1::BASE_OPTIMIZER_ADAMW) {
    AdamWRule adamw = rule;
    adamw.decay_factor = decay;
    return AdamWStep(adamw, g, p, moments(&state_.first_moments), moments(&state_.second_moments));
  }
  if (decay != 1.0f) DecayInPlace(decay, p);
  if (optimizer_.base() == v1::BASE_OPTIMIZER_SGD) return SgdStep(rule.eta, g, p);
  std::vector<float> direction(g.size());
  LionDirection(lion_, g, moments(&state_.first_moments), absl::MakeSpan(direction));
  SignInPlace(absl::MakeSpan(direction));
  SgdStep(rule.eta, direction, p);
}

}  // namespace isthmus
