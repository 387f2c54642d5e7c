#include "worker/methods/update_step.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "base/parallel.h"
#include "base/status_macros.h"
#include "kernels/demo.h"
#include "spec/run_spec.h"
#include "worker/methods/thread_scratch.h"

namespace isthmus {

absl::Status CheckSameSizes(absl::string_view what, const std::vector<std::vector<float>>& held,
                            const std::vector<std::vector<float>>& given) {
  if (held.size() != given.size()) {
    return absl::InvalidArgumentError(absl::StrCat("a state has the ", what, " of ", given.size(),
                                                   " parts; there are ", held.size()));
  }
  for (size_t i = 0; i < held.size(); ++i) {
    if (held[i].size() == given[i].size()) continue;
    return absl::InvalidArgumentError(absl::StrCat("the ", what, " of part ", i, " has ",
                                                   given[i].size(), " values; it has ",
                                                   held[i].size(), " elements"));
  }
  return absl::OkStatus();
}

absl::StatusOr<UpdateStep> UpdateStep::Make(std::shared_ptr<const HeldBlocks> held,
                                            const StepOptions& options) {
  const v1::OptimizerSpec& optimizer = options.optimizer;
  UpdateStep step;
  std::vector<std::string> names;
  for (uint32_t t = 0; t < held->grid().tensors(); ++t) {
    names.push_back(held->grid().tensor_name(t));
  }
  ISTHMUS_ASSIGN_OR_RETURN(step.decay_scale_, DecayScales(optimizer, names));
  const uint32_t arrays = BaseStateArrays(optimizer);
  for (const HeldBlocks::Part& part : held->parts()) {
    if (arrays > 0) step.state_.first_moments.emplace_back(part.elements);
    if (arrays > 1) step.state_.second_moments.emplace_back(part.elements);
  }
  step.held_ = std::move(held);
  step.codec_ = options.codec;
  step.optimizer_ = optimizer;
  step.seed_ = options.seed;
  step.threads_ = options.threads;
  return step;
}

absl::Status UpdateStep::SetState(StepState state) {
  ISTHMUS_RETURN_IF_ERROR(
      CheckSameSizes("first moment", state_.first_moments, state.first_moments));
  ISTHMUS_RETURN_IF_ERROR(
      CheckSameSizes("second moment", state_.second_moments, state.second_moments));
  state_ = std::move(state);
  return absl::OkStatus();
}

absl::Status UpdateStep::CheckRates(const UpdateRates& rates) const {
  for (const float value : {rates.lr, rates.weight_decay, rates.norm}) {
    if (value >= 0.0f && std::isfinite(value)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("the learning rate is ", rates.lr, ", the weight decay ", rates.weight_decay,
                     " and the norm ", rates.norm, "; give finite numbers, 0 or more"));
  }
  return absl::OkStatus();
}

UpdateStep::Rule UpdateStep::Begin(const UpdateRates& rates) {
  Rule rule;
  rule.lr = rates.lr;
  const float clip = optimizer_.clip_norm();
  if (codec_.kind() == v1::CODEC_KIND_DENSE && clip > 0 && rates.norm > clip) {
    rule.clip_scale = clip / rates.norm;
  }
  if (optimizer_.momentum() == 0) {  // there they would be part of the state, for nothing
    state_.beta1_power *= static_cast<double>(optimizer_.beta1());
    state_.beta2_power *= static_cast<double>(optimizer_.beta2());
  }
  rule.bias1 = static_cast<float>(1.0 - state_.beta1_power);
  rule.bias2 = static_cast<float>(1.0 - state_.beta2_power);
  const bool coupled = codec_.rules() == v1::METHOD_RULES_PUBLISHED &&
                       optimizer_.base() == v1::BASE_OPTIMIZER_SGD && rates.weight_decay > 0;
  for (const float scale : decay_scale_) {
    rule.decay_factor.push_back(DecayFactor(rates.lr, coupled ? 0 : rates.weight_decay * scale));
    if (coupled) rule.coupled_decay.push_back(rates.weight_decay * scale);
  }
  return rule;
}

absl::Status UpdateStep::Apply(const UpdateRates& rates,
                               absl::Span<const std::string* const> update,
                               const std::vector<TensorPart<float>>& parameters) {
  ISTHMUS_RETURN_IF_ERROR(CheckRates(rates));
  ISTHMUS_ASSIGN_OR_RETURN(const std::vector<absl::Span<float>> data,
                           held_->MatchAllParts(parameters));
  ISTHMUS_ASSIGN_OR_RETURN(const std::vector<Components> components,
                           held_->ReadUpdate(update, threads_));
  const Rule rule = Begin(rates);
  absl::optional<RowChoice> rows;
  if (SendsRows(codec_)) rows.emplace(&held_->grid(), seed_, rates.round);
  ParallelFor(held_->blocks().size(), threads_, [&](size_t i) {
    const HeldBlock& held = held_->blocks()[i];
    ApplyBlock(held, rule, rows.has_value() ? &*rows : nullptr, components, data[held.part]);
  });
  return absl::OkStatus();
}

absl::Status UpdateStep::ApplyOwn(const UpdateRates& rates,
                                  const std::vector<std::vector<float>>& values,
                                  const std::vector<TensorPart<float>>& parameters) {
  ISTHMUS_RETURN_IF_ERROR(CheckRates(rates));
  ISTHMUS_ASSIGN_OR_RETURN(const std::vector<absl::Span<float>> data,
                           held_->MatchAllParts(parameters));
  const Rule rule = Begin(rates);
  ParallelFor(held_->blocks().size(), threads_, [&](size_t i) {
    const HeldBlock& held = held_->blocks()[i];
    const uint64_t elements = held_->BlockOf(held).elements;
    std::vector<float> u(values[held.part].begin() + held.offset,
                         values[held.part].begin() + held.offset + elements);
    if (codec_.sign()) SignInPlace(absl::MakeSpan(u));
    StepRow(held.part, held.offset, rule, u, data[held.part]);
  });
  return absl::OkStatus();
}

void UpdateStep::ApplyBlock(const HeldBlock& held, const Rule& rule, const RowChoice* rows,
                            const std::vector<Components>& components, absl::Span<float> part) {
  const Grid& grid = held_->grid();
  const Block& block = held_->BlockOf(held);
  const bool transformed = codec_.kind() == v1::CODEC_KIND_DEMO;
  // Signs of an update that the coordinator has decoded (PAYLOAD_CODEC_SIGN_PLANE).
  const Components& first = components[held.first_slot];
  const bool are_signs = transformed && first.index.empty() && !first.value.empty();
  const bool fused = transformed && !are_signs && optimizer_.base() == v1::BASE_OPTIMIZER_SGD &&
                     optimizer_.momentum() == 0 && rule.coupled_decay.empty();
  const StepRule step = {codec_.sign(), rule.lr, rule.decay_factor[block.tensor]};
  std::vector<float> u;
  for (uint64_t c = 0, runs = 1; c < block.chunks; c += runs) {
    const ChunkPlace place = grid.Place(block.first_chunk + c);
    const Components& merged = components[held.first_slot + c];
    if (fused) {
      runs = held_->RunsFrom(block.first_chunk + c);
      float* const p = part.data() + held_->OffsetInPart(held, place);
      if (runs > 1) {
        StepRuns(place.shape.cols, runs, step, &merged, p);
      } else {
        StepChunk(place.shape, step, merged, p, place.stride, ThreadScratch());
      }
      continue;
    }
    if (are_signs) {
      u = merged.value;
    } else if (u.assign(place.shape.elements(), 0.0f); transformed) {
      DecodeComponents(place.shape, merged, absl::MakeSpan(u));
    } else if (rows != nullptr) {
      const std::vector<uint32_t> elements = rows->Elements(place);
      for (size_t i = 0; i < elements.size(); ++i) u[elements[i]] = merged.value[i];
    } else {
      for (size_t i = 0; i < merged.size(); ++i) u[merged.index[i]] = merged.value[i];
    }
    StepValues(held, place, rule, absl::MakeSpan(u), part);
  }
}

void UpdateStep::StepValues(const HeldBlock& held, const ChunkPlace& place, const Rule& rule,
                            absl::Span<float> u, absl::Span<float> part) {
  if (rule.clip_scale != 1.0f) {
    for (float& value : u) value *= rule.clip_scale;
  }
  if (codec_.sign()) SignInPlace(u);
  const uint64_t first = held_->OffsetInPart(held, place);
  for (uint32_t j = 0; j < place.shape.rows; ++j) {
    StepRow(held.part, first + j * place.stride, rule,
            u.subspan(j * place.shape.cols, place.shape.cols), part);
  }
}

void UpdateStep::StepRow(uint32_t part_number, uint64_t first, const Rule& rule,
                         absl::Span<const float> u, absl::Span<float> part) {
  const absl::Span<float> p = part.subspan(first, u.size());
  const float decay = rule.decay_factor[held_->parts()[part_number].tensor];
  if (optimizer_.base() == v1::BASE_OPTIMIZER_SGD) {
    if (decay != 1.0f) DecayInPlace(decay, p);
    std::vector<float> with_decay;
    if (!rule.coupled_decay.empty()) {
      const float lambda = rule.coupled_decay[held_->parts()[part_number].tensor];
      with_decay.assign(u.begin(), u.end());
      for (size_t i = 0; i < u.size(); ++i) {
        const float product = lambda * p[i];
        with_decay[i] += product;
      }
      u = with_decay;
    }
    if (optimizer_.momentum() == 0) return SgdStep(rule.lr, u, p);
    const absl::Span<float> m =
        absl::MakeSpan(state_.first_moments[part_number]).subspan(first, u.size());
    UpdateMomentum(optimizer_.momentum(), 1.0f, u, m);
    return SgdStep(rule.lr, m, p);
  }
  AdamWRule adamw;
  adamw.beta1 = optimizer_.beta1();
  adamw.beta2 = optimizer_.beta2();
  adamw.eps = optimizer_.eps();
  adamw.eta = rule.lr;
  adamw.decay_factor = decay;
  adamw.bias1 = rule.bias1;
  adamw.bias2 = rule.bias2;
  AdamWStep(adamw, u, p, absl::MakeSpan(state_.first_moments[part_number]).subspan(first, u.size()),
            absl::MakeSpan(state_.second_moments[part_number]).subspan(first, u.size()));
}

}  // namespace isthmus
