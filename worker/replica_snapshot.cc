// The replicated state of one rank as a part of a snapshot, and back.
#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>

#include "absl/base/casts.h"
#include "absl/strings/str_cat.h"
#include "base/sha256.h"
#include "base/status_macros.h"
#include "spec/manifest.h"
#include "spec/stages.h"
#include "worker/replica.h"

namespace isthmus {

std::vector<uint64_t> Replica::PartBegins() {
  const Grid& grid = model_->grid();
  std::vector<uint64_t> tensor_begins(grid.tensors());
  for (uint32_t tensor = 1; tensor < grid.tensors(); ++tensor) {
    tensor_begins[tensor] = tensor_begins[tensor - 1] + grid.tensor_elements(tensor - 1);
  }
  std::vector<uint64_t> begins;
  for (const TensorPart<float>& part : model_->parameters()) {
    begins.push_back(tensor_begins[part.tensor] + part.first_element);
  }
  return begins;
}

absl::StatusOr<StateCopy> Replica::CopyForCheck(uint64_t step) {
  StateCopy copy;
  std::vector<TensorPart<const float>> parts = AsConst(model_->parameters());
  const Sections sections = method_->StateSections(parts);
  const bool has_powers = sections.size() > 1;
  const StepState step_state = method_->step_state();
  copy.facts.set_step(step);
  copy.facts.set_sections(static_cast<uint32_t>(sections.size()));
  copy.facts.set_beta1_power_bits(
      absl::bit_cast<uint64_t>(has_powers ? step_state.beta1_power : 1.0));
  copy.facts.set_beta2_power_bits(
      absl::bit_cast<uint64_t>(has_powers ? step_state.beta2_power : 1.0));
  copy.facts.set_frozen_sha256(frozen_sha256_);
  for (uint32_t section = 0; section < sections.size(); ++section) {
    for (size_t i = 0; i < parts.size(); ++i) {
      parts[i].data = sections[section][i];
      ISTHMUS_RETURN_IF_ERROR(CopyPart(model_->grid(), section, parts[i], &copy));
    }
  }
  return copy;
}

void Replica::FlipBit(int bit) {
  const Sections sections = method_->StateSections(AsConst(model_->parameters()));
  for (const absl::Span<const float> values : sections.front()) {
    if (values.empty()) continue;
    auto* const value = const_cast<float*>(values.data());
    *value = absl::bit_cast<float>(absl::bit_cast<uint32_t>(*value) ^ (uint32_t{1} << bit));
    break;
  }
  model_->ParametersChanged();
}

SnapshotParts Replica::CopyState() {
  SnapshotParts copy;
  const std::vector<uint64_t> begins = PartBegins();
  const Sections sections = method_->StateSections(AsConst(model_->parameters()));
  for (uint32_t section = 0; section < sections.size(); ++section) {
    for (size_t i = 0; i < begins.size(); ++i) {
      const absl::Span<const float> data = sections[section][i];
      if (data.empty()) continue;
      copy.parts.push_back({section, begins[i], {data.begin(), data.end()}});
    }
  }
  std::sort(copy.parts.begin(), copy.parts.end(), [](const auto& a, const auto& b) {
    return std::tie(a.section, a.begin) < std::tie(b.section, b.begin);
  });
  return copy;
}

absl::Status Replica::CheckFacts(const v1::SnapshotFacts& facts) {
  const auto differs = [&](absl::string_view what, const std::string& theirs,
                           const std::string& ours, absl::string_view advice) {
    return absl::FailedPreconditionError(absl::StrCat("the snapshot of round ", facts.round(),
                                                      " has ", what, " ", theirs, ", this node ",
                                                      ours, advice));
  };
  const uint32_t sections = StateSections(options_.spec);
  if (facts.sections() != sections || facts.elements() != model_->grid().elements()) {
    return differs("sections and elements", absl::StrCat(facts.sections(), ", ", facts.elements()),
                   absl::StrCat(sections, ", ", model_->grid().elements()), "");
  }
  const std::string fingerprint = Fingerprint(model_->manifest());
  if (facts.fingerprint() != fingerprint) {
    return differs("model", HexPrefix(facts.fingerprint()), HexPrefix(fingerprint), "");
  }
  if (facts.frozen_sha256() == frozen_sha256_) return absl::OkStatus();
  return differs("frozen tensors", HexPrefix(facts.frozen_sha256()), HexPrefix(frozen_sha256_),
                 "; they are no part of it: give the same --start_file on all nodes");
}

absl::Status Replica::FetchState(RankClient* client, uint64_t round, v1::SnapshotFacts* facts) {
  // Ranges of all sections; the server says how many of them there are.
  const std::vector<TensorPart<float>> parameters = model_->parameters();
  const std::vector<uint64_t> begins = PartBegins();
  ISTHMUS_RETURN_IF_ERROR(FrozenSha256().status());
  ISTHMUS_ASSIGN_OR_RETURN(*facts, client->FetchSnapshot(round, {}, nullptr));
  ISTHMUS_RETURN_IF_ERROR(CheckFacts(*facts));

  MethodState state = method_->State();
  state.x.clear();  // the snapshot's
  state.work = LocalWork();
  state.carried_rounds = 0;
  StepState& step = state.step;
  struct Place {
    SectionRange range;
    float* values;
  };
  std::vector<Place> places;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const uint64_t size = parameters[i].data.size();
    if (size == 0) continue;
    places.push_back({{0, begins[i], begins[i] + size}, parameters[i].data.data()});
    if (facts->sections() > 1) {
      places.push_back({{1, begins[i], begins[i] + size}, step.first_moments[i].data()});
    }
    if (facts->sections() > 2) {
      places.push_back({{2, begins[i], begins[i] + size}, step.second_moments[i].data()});
    }
  }
  std::sort(places.begin(), places.end(),
            [](const Place& a, const Place& b) { return a.range < b.range; });
  std::vector<SectionRange> ranges;
  for (const Place& place : places) ranges.push_back(place.range);
  size_t next = 0;  // pieces come in order
  const auto take = [&](const v1::SnapshotPiece& piece) {
    uint64_t at = piece.begin();
    absl::string_view values = piece.data();
    while (!values.empty()) {
      while (places[next].range.section < piece.section() ||
             (places[next].range.section == piece.section() && places[next].range.end <= at)) {
        ++next;  // the client has checked that all of it was asked for
      }
      const SectionRange& range = places[next].range;
      const uint64_t count = std::min<uint64_t>(range.end - at, values.size() / sizeof(float));
      std::memcpy(places[next].values + (at - range.begin), values.data(), count * sizeof(float));
      values.remove_prefix(count * sizeof(float));
      at += count;
    }
    return absl::OkStatus();
  };
  // Neighbours as one range.
  ranges = Missing(ranges, {}, ranges.size());
  ISTHMUS_RETURN_IF_ERROR(client->FetchSnapshot(round, ranges, take).status());
  if (facts->sections() > 1) {
    step.beta1_power = absl::bit_cast<double>(facts->beta1_power_bits());
    step.beta2_power = absl::bit_cast<double>(facts->beta2_power_bits());
  }
  ISTHMUS_RETURN_IF_ERROR(method_->StartAt(AsConst(parameters)));
  ISTHMUS_RETURN_IF_ERROR(method_->SetState(std::move(state)));
  model_->ParametersChanged();
  return absl::OkStatus();
}

}  // namespace isthmus
