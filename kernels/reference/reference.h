// The slow obvious implementation of kernels/demo.h, one function for each one there. The faster
// ones are compared with it: bit for bit where the header says bit-equal, else within a tolerance.
#pragma once

#include "absl/types/span.h"
#include "kernels/chunk.h"
#include "kernels/demo.h"

namespace isthmus {
namespace reference {

void UpdateMomentum(float beta, float eta, absl::Span<const float> g, absl::Span<float> d);
void EncodeChunk(ChunkShape shape, const float* x, size_t stride, absl::Span<float> coefficients);
void SelectTopK(absl::Span<const float> coefficients, uint32_t k, Components* out);
void DecodeComponents(ChunkShape shape, const Components& components, absl::Span<float> x);
void SignInPlace(absl::Span<float> x);
void DecayInPlace(float factor, absl::Span<float> p);
void SgdStep(float eta, absl::Span<const float> u, absl::Span<float> p);
void AddScaledChunk(ChunkShape shape, float scale, absl::Span<const float> x, float* target,
                    size_t stride);
void ReserveChunk(ChunkShape shape, const ReserveRule& rule, const float* g, size_t g_stride,
                  float* d, size_t stride, ChunkScratch* scratch, Components* sent);
void StepChunk(ChunkShape shape, const StepRule& rule, const Components& merged, float* p,
               size_t stride, ChunkScratch* scratch);
void AdamWStep(const AdamWRule& rule, absl::Span<const float> u, absl::Span<float> p,
               absl::Span<float> m, absl::Span<float> v);

}  // namespace reference
}  // namespace isthmus
