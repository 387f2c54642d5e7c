#include "tests/vectors/outer_vectors.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <stdexcept>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/vectors/outer_case.h"

namespace isthmus {
namespace {

constexpr double kTolerance = 1e-6;

using Check = std::function<void(const OuterCase&, Comparison*)>;

const std::map<std::string, Check>& Families() {
  static const auto* const families = new std::map<std::string, Check>{
      {"sign_momentum", CheckSignMomentumCase},
      {"nesterov", CheckSgdCase},
      {"slowmo", CheckSlowMoCase},
      {"adamw_outer", CheckAdamWCase},
      {"distributed_lion", CheckLionCase},
      {"error_feedback", CheckFeedbackCase},
      {"quantization", CheckQuantizationCase},
      {"hadamard", CheckHadamardCase},
      {"aggregation", CheckAggregationCase},
  };
  return *families;
}

// Rules that are recorded and not built yet.
bool IsBuilt(const std::string& name) {
  for (const char* other : {"error_feedback/ef21", "quantization/e3m0", "aggregation/iso_c"}) {
    if (absl::StartsWith(name, other)) return false;
  }
  return true;
}

Comparison CheckCase(const VectorFile& file, const std::string& family,
                     const nlohmann::json& entry) {
  Comparison comparison(absl::StrCat(family, "/", entry.value("name", "")));
  const auto check = Families().find(family);
  if (check == Families().end() || !IsBuilt(comparison.name())) {
    comparison.Skip("the rule is not built");
    return comparison;
  }
  try {
    check->second(OuterCase(file, family, entry), &comparison);
  } catch (const std::exception& error) {
    comparison.Expect(false, error.what());
  }
  return comparison;
}

}  // namespace

OuterCase::OuterCase(const VectorFile& file, std::string family, const nlohmann::json& entry)
    : file_(file), name_(entry.at("name")), hyper_(entry.at("hyper")) {
  prefix_ = absl::StrCat(family, "/", name_, "/");
}

const VectorArray& OuterCase::Find(absl::string_view array) const {
  const VectorArray* found = file_.Find(absl::StrCat(prefix_, array));
  if (found == nullptr) throw std::runtime_error(absl::StrCat(prefix_, array, " is missing"));
  return *found;
}

bool OuterCase::Has(absl::string_view array) const {
  return file_.Find(absl::StrCat(prefix_, array)) != nullptr;
}

size_t OuterCase::Size(absl::string_view array, size_t axis) const {
  return Find(array).shape.at(axis);
}

namespace {

template <class Value>
absl::Span<const Value> Part(const VectorArray& array, const std::vector<Value>& values,
                             const std::vector<size_t>& at) {
  size_t first = 0, count = values.size();
  for (size_t axis = 0; axis < at.size(); ++axis) {
    if (at[axis] >= array.shape.at(axis)) throw std::runtime_error("an array has too few rows");
    count /= array.shape[axis];
    first += at[axis] * count;
  }
  return absl::MakeConstSpan(values).subspan(first, count);
}

}  // namespace

absl::Span<const float> OuterCase::Floats(absl::string_view array, std::vector<size_t> at) const {
  const VectorArray& found = Find(array);
  if (!found.integers.empty()) throw std::runtime_error(absl::StrCat(array, " holds integers"));
  return Part(found, found.floats, at);
}

absl::Span<const int64_t> OuterCase::Integers(absl::string_view array,
                                              std::vector<size_t> at) const {
  const VectorArray& found = Find(array);
  if (!found.floats.empty()) throw std::runtime_error(absl::StrCat(array, " holds floats"));
  return Part(found, found.integers, at);
}

void OuterCase::Near(absl::string_view array, std::vector<size_t> at, absl::Span<const float> ours,
                     Comparison* comparison) const {
  float largest = 0.0f;
  for (const float v : Find(array).floats) largest = std::max(largest, std::fabs(v));
  comparison->Near(absl::StrCat(prefix_, array), kTolerance * largest, ours, Floats(array, at));
}

void OuterCase::Equal(absl::string_view array, std::vector<size_t> at,
                      absl::Span<const int64_t> ours, Comparison* comparison) const {
  comparison->Expect(ours == Integers(array, at),
                     absl::StrCat(prefix_, array, " differs from what is recorded"));
}

bool HasOuterVectors(const VectorFile& file) {
  for (const std::string& name : file.Children("")) {
    if (!absl::EndsWith(name, ".json")) continue;
    const nlohmann::json json = nlohmann::json::parse(file.Text(name), nullptr, false);
    if (json.is_object() && json.contains("family") && json.contains("cases")) return true;
  }
  return false;
}

std::vector<Comparison> CheckOuterVectors(const VectorFile& file) {
  std::vector<Comparison> all;
  for (const std::string& name : file.Children("")) {
    if (!absl::EndsWith(name, ".json")) continue;
    const nlohmann::json json = nlohmann::json::parse(file.Text(name), nullptr, false);
    if (!json.is_object() || !json.contains("family") || !json.contains("cases")) {
      all.emplace_back(name);
      all.back().Skip("it is not a family of outer updates");
      continue;
    }
    for (const nlohmann::json& entry : json["cases"]) {
      all.push_back(CheckCase(file, json["family"].get<std::string>(), entry));
    }
  }
  return all;
}

}  // namespace isthmus
