// Error feedback `residual`: what a lossy format did not send is not lost but added to what is sent
// next. Kept by the contributor in float32; the coordinator does the same for lossy replies, with
// decay and gain 1 and u = x' - x for d.
//
//   reserve  e <- decay * e + d                                            (AddToResidual)
//            q = what is sent of e, e <- e - gain * deq(q)                 (TakeFromResidual)
//            q stays on the pending list, with gain and the decays since
//   settle   included: the pending entry is dropped
//            left out: e <- e + (product of the decays since * gain) * deq(q)  (GiveBack)
//
// deq(q) is exactly what the receiver decodes. With decay 1 and gain 1 all that went in is in an
// update, pending, or in e. Element-wise, each operation rounded by itself, bit-equal everywhere.
#pragma once

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace isthmus {

struct FeedbackSettings {
  double decay = 1.0;  // of e, each round; [0, 1]
  double gain = 1.0;   // share of what is sent that leaves e; (0, 1]
};

// INVALID_ARGUMENT naming field and value.
absl::Status CheckFeedback(const FeedbackSettings& settings);

// All spans of one size.
void AddToResidual(float decay, absl::Span<const float> d, absl::Span<float> e);
void TakeFromResidual(float gain, absl::Span<const float> decoded, absl::Span<float> e);
void GiveBack(float factor, absl::Span<const float> decoded, absl::Span<float> e);

}  // namespace isthmus
