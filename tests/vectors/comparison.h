// One group of numbers compared with a recording, and the line that reports it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace isthmus {

class Comparison {
 public:
  explicit Comparison(std::string name) : name_(std::move(name)) {}

  // Every element of `ours` is within `tolerance` of `recorded`. `what` names the array in a
  // failure. Where `left_out` (empty, or as long) is not 0 an element is not compared.
  void Near(absl::string_view what, double tolerance, absl::Span<const float> ours,
            absl::Span<const float> recorded, absl::Span<const int64_t> left_out = {});
  // Something that is either right or wrong; `text` says what is wrong.
  void Expect(bool right, absl::string_view text);
  // The group was not compared.
  void Skip(std::string reason) { skipped_ = std::move(reason); }
  // A recording that cannot be read as what it should be.
  void Expect(const absl::Status& status) { Expect(status.ok(), status.message()); }

  const std::string& name() const { return name_; }
  bool skipped() const { return !skipped_.empty(); }
  // A group in which nothing was compared is not ok: it would hide a recording that has changed.
  bool ok() const { return failures_.empty() && compared_ > 0; }
  // "vector NAME max_error=... tolerance=... ok", the error that is nearest to its tolerance;
  // "vector NAME skipped (reason)"; and for a failure a line for each of the first few.
  std::string Lines() const;

 private:
  void Fail(std::string text);

  std::string name_;
  std::string skipped_;
  std::vector<std::string> failures_;
  uint64_t compared_ = 0;
  // Of the worst comparison: the largest error relative to its tolerance.
  std::string worst_what_;
  double worst_error_ = 0;
  double worst_tolerance_ = 0;
};

}  // namespace isthmus
