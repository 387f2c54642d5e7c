// One recorded case of an outer update: its settings, and its arrays by part and name.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "nlohmann/json.hpp"
#include "tests/vectors/comparison.h"
#include "tests/vectors/vector_file.h"

namespace isthmus {

// A recording that is not in the form ends the program's comparison of that case by an exception,
// as the JSON library does for a value of another kind.
class OuterCase {
 public:
  OuterCase(const VectorFile& file, std::string family, const nlohmann::json& entry);

  const std::string& name() const { return name_; }
  const nlohmann::json& hyper() const { return hyper_; }

  bool Has(absl::string_view array) const;
  // "inputs/x0", "f32/x". The leading axes (round, contributor) are numbered by `at`: what is left
  // is returned.
  absl::Span<const float> Floats(absl::string_view array, std::vector<size_t> at = {}) const;
  absl::Span<const int64_t> Integers(absl::string_view array, std::vector<size_t> at = {}) const;
  // Length of an axis.
  size_t Size(absl::string_view array, size_t axis) const;

  // Within 1e-6 of the largest magnitude recorded.
  void Near(absl::string_view array, std::vector<size_t> at, absl::Span<const float> ours,
            Comparison* comparison) const;
  // Every integer alike.
  void Equal(absl::string_view array, std::vector<size_t> at, absl::Span<const int64_t> ours,
             Comparison* comparison) const;

 private:
  const VectorArray& Find(absl::string_view array) const;

  const VectorFile& file_;
  std::string name_;
  std::string prefix_;
  nlohmann::json hyper_;
};

// One family's comparison of a case.
void CheckSignMomentumCase(const OuterCase& c, Comparison* comparison);
void CheckSgdCase(const OuterCase& c, Comparison* comparison);
void CheckSlowMoCase(const OuterCase& c, Comparison* comparison);
void CheckAdamWCase(const OuterCase& c, Comparison* comparison);
void CheckLionCase(const OuterCase& c, Comparison* comparison);
void CheckFeedbackCase(const OuterCase& c, Comparison* comparison);
void CheckQuantizationCase(const OuterCase& c, Comparison* comparison);
void CheckHadamardCase(const OuterCase& c, Comparison* comparison);
void CheckAggregationCase(const OuterCase& c, Comparison* comparison);

}  // namespace isthmus
