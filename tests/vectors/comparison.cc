#include "tests/vectors/comparison.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace isthmus {
namespace {

constexpr size_t kFailuresShown = 5;

// How much of its tolerance an error takes up.
double Ratio(double error, double tolerance) {
  if (error == 0) return 0;
  return std::isnan(error) ? HUGE_VAL : error / tolerance;
}

}  // namespace

void Comparison::Fail(std::string text) { failures_.push_back(std::move(text)); }

void Comparison::Near(absl::string_view what, double tolerance, absl::Span<const float> ours,
                      absl::Span<const float> recorded, absl::Span<const int64_t> left_out) {
  if (ours.size() != recorded.size()) {
    return Fail(
        absl::StrCat(what, " has ", recorded.size(), " elements recorded, ours has ", ours.size()));
  }
  if (!left_out.empty() && left_out.size() != ours.size()) {
    return Fail(
        absl::StrCat(what, " has ", ours.size(), " elements, and a mask of ", left_out.size()));
  }
  double worst = -1;
  size_t worst_at = 0;
  for (size_t i = 0; i < ours.size(); ++i) {
    if (!left_out.empty() && left_out[i] != 0) continue;
    ++compared_;
    const double error = std::fabs(static_cast<double>(ours[i]) - recorded[i]);
    if (error <= worst) continue;
    worst = error;
    worst_at = i;
    if (std::isnan(error)) break;
  }
  if (worst < 0) return;
  if (!(worst <= tolerance)) {
    Fail(absl::StrFormat("%s[%d] is %.9g, recorded %.9g, tolerance %g", std::string(what), worst_at,
                         ours[worst_at], recorded[worst_at], tolerance));
  }
  if (worst_what_.empty() || Ratio(worst, tolerance) > Ratio(worst_error_, worst_tolerance_)) {
    worst_what_ = std::string(what);
    worst_error_ = worst;
    worst_tolerance_ = tolerance;
  }
}

void Comparison::Expect(bool right, absl::string_view text) {
  ++compared_;
  if (!right) Fail(std::string(text));
}

std::string Comparison::Lines() const {
  if (skipped()) return absl::StrCat("vector ", name_, " skipped (", skipped_, ")\n");
  std::string lines = absl::StrFormat("vector %s max_error=%.3g tolerance=%g %s", name_,
                                      worst_error_, worst_tolerance_, ok() ? "ok" : "FAILED");
  absl::StrAppend(&lines, " (", compared_, " compared",
                  worst_what_.empty() ? "" : absl::StrCat(", worst in ", worst_what_), ")\n");
  const size_t shown = std::min(failures_.size(), kFailuresShown);
  for (size_t i = 0; i < shown; ++i) absl::StrAppend(&lines, "  ", failures_[i], "\n");
  if (shown < failures_.size()) {
    absl::StrAppend(&lines, "  and ", failures_.size() - shown, " more\n");
  }
  return lines;
}

}  // namespace isthmus
