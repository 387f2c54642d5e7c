// A chunk's two ways, to what is sent and into the parameters, put together from their parts.
#include <vector>

#include "base/check.h"
#include "kernels/reference/reference.h"

namespace isthmus {
namespace reference {

void ReserveChunk(ChunkShape shape, const ReserveRule& rule, const float* g, size_t g_stride,
                  float* d, size_t stride, ChunkScratch* scratch, Components* sent) {
  const std::vector<float> zeros(shape.cols);
  for (uint32_t j = 0; j < shape.rows; ++j) {
    reference::UpdateMomentum(
        rule.beta, rule.eta,
        absl::MakeConstSpan(g == nullptr ? zeros.data() : g + j * g_stride, shape.cols),
        absl::MakeSpan(d + j * stride, shape.cols));
  }
  const absl::Span<float> whole = absl::MakeSpan(scratch->first, shape.elements());
  reference::EncodeChunk(shape, d, stride, whole);
  reference::SelectTopK(whole, rule.k, sent);
  reference::DecodeComponents(shape, *sent, whole);
  reference::AddScaledChunk(shape, -rule.alpha, whole, d, stride);
}

void StepChunk(ChunkShape shape, const StepRule& rule, const Components& merged, float* p,
               size_t stride, ChunkScratch* scratch) {
  const absl::Span<float> u = absl::MakeSpan(scratch->first, shape.elements());
  reference::DecodeComponents(shape, merged, u);
  if (rule.sign) reference::SignInPlace(u);
  for (uint32_t j = 0; j < shape.rows; ++j) {
    const absl::Span<float> row = absl::MakeSpan(p + j * stride, shape.cols);
    reference::DecayInPlace(rule.decay_factor, row);
    reference::SgdStep(rule.eta, u.subspan(j * shape.cols, shape.cols), row);
  }
}

}  // namespace reference
}  // namespace isthmus
