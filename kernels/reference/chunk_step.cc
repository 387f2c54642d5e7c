// A chunk's two ways, to what is sent and into the parameters, put together from their parts.
#include <vector>

#include "base/check.h"
#include "kernels/demo.h"

namespace isthmus {

void ReserveChunk(ChunkShape shape, const ReserveRule& rule, const float* g, size_t g_stride,
                  float* d, size_t stride, ChunkScratch* scratch, Components* sent) {
  const std::vector<float> zeros(shape.cols);
  for (uint32_t j = 0; j < shape.rows; ++j) {
    UpdateMomentum(rule.beta, rule.eta,
                   absl::MakeConstSpan(g == nullptr ? zeros.data() : g + j * g_stride, shape.cols),
                   absl::MakeSpan(d + j * stride, shape.cols));
  }
  const absl::Span<float> whole = absl::MakeSpan(scratch->first, shape.elements());
  EncodeChunk(shape, d, stride, whole);
  SelectTopK(whole, rule.k, sent);
  DecodeComponents(shape, *sent, whole);
  AddScaledChunk(shape, -rule.alpha, whole, d, stride);
}

void StepChunk(ChunkShape shape, const StepRule& rule, const Components& merged, float* p,
               size_t stride, ChunkScratch* scratch) {
  const absl::Span<float> u = absl::MakeSpan(scratch->first, shape.elements());
  DecodeComponents(shape, merged, u);
  if (rule.sign) SignInPlace(u);
  for (uint32_t j = 0; j < shape.rows; ++j) {
    const absl::Span<float> row = absl::MakeSpan(p + j * stride, shape.cols);
    DecayInPlace(rule.decay_factor, row);
    SgdStep(rule.eta, u.subspan(j * shape.cols, shape.cols), row);
  }
}

}  // namespace isthmus
