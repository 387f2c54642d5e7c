#include "kernels/feedback.h"

#include "absl/strings/str_cat.h"
#include "kernels/demo.h"

namespace isthmus {

absl::Status CheckFeedback(const FeedbackSettings& settings) {
  if (!(settings.decay >= 0.0 && settings.decay <= 1.0)) {
    return absl::InvalidArgumentError(absl::StrCat("feedback.decay is ", settings.decay,
                                                   "; it must be at least 0 and at most 1"));
  }
  if (!(settings.gain > 0.0 && settings.gain <= 1.0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("feedback.gain is ", settings.gain, "; it must be above 0 and at most 1"));
  }
  return absl::OkStatus();
}

void AddToResidual(float decay, absl::Span<const float> d, absl::Span<float> e) {
  UpdateMomentum(decay, 1.0f, d, e);
}

void TakeFromResidual(float gain, absl::Span<const float> decoded, absl::Span<float> e) {
  SgdStep(gain, decoded, e);
}

// e - (-factor) * decoded has the bits of e + factor * decoded.
void GiveBack(float factor, absl::Span<const float> decoded, absl::Span<float> e) {
  SgdStep(-factor, decoded, e);
}

}  // namespace isthmus
