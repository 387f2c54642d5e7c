// The plain functions of one DeMo step (arXiv 2411.19870; FlexDeMo, arXiv 2502.06728), over spans
// and one chunk at a time. This header is shared by all implementations; kernels/reference/ is the
// slow obvious one that the faster ones are compared with.
//
// Bit-equal everywhere (a replicated state machine runs on them): MergeBySenders, DecodeComponents,
// SignInPlace, DecayInPlace, SgdStep. Their order of operations is stated here, multiply and add
// are separate roundings, nothing is flushed to zero. EncodeChunk and SelectTopK are local to a
// node and only meet a tolerance.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "kernels/chunk.h"

namespace isthmus {

// Orthonormal DCT-II basis of side n, 1 <= n <= 128, row-major [position j][frequency b]:
//   F[j][b] = s_b * cos(pi * (2j + 1) * b / (2n)),  s_0 = sqrt(1/n), s_b = sqrt(2/n).
// Built from checked-in constants (rounded once from more digits), so it is the same on all
// machines. The span stays valid for the life of the process. Thread-safe.
absl::Span<const float> DctBasis(uint32_t n);

// d <- beta * d, then d <- d + eta * g, element-wise. Sizes equal.
void UpdateMomentum(float beta, float eta, absl::Span<const float> g, absl::Span<float> d);

// DCT-II of one chunk. `x` points at its first element, `stride` is the distance between its rows
// in elements. `coefficients` takes rows*cols values.
void EncodeChunk(ChunkShape shape, const float* x, size_t stride, absl::Span<float> coefficients);

// Exactly the `k` coefficients of largest magnitude, ascending by index; of equal magnitudes the
// lower index wins. 1 <= k <= size; all coefficients finite (checked before the momentum).
void SelectTopK(absl::Span<const float> coefficients, uint32_t k, Components* out);

// Inverse transform of a few components: x (rows*cols, row-major, dense) is overwritten.
// Stated order, whatever the number of components:
//   y[b][l] = sum over the components of row frequency b, ascending column frequency e, of
//             value * F_cols[l][e]                              (only rows b that have components)
//   x[j][l] = sum over those b, ascending, of F_rows[j][b] * y[b][l]
// each sum starting at +0. A run (rows = 1) is its y[0].
void DecodeComponents(ChunkShape shape, const Components& components, absl::Span<float> x);

// For each position that at least one sender has: (sum over those senders in the given order,
// starting with the first one's value) / (number of those senders). Senders are in ascending node
// name. `elements` of the chunk, at most 128 * 128, bounds the indices. A sum beyond float32's
// range gives the largest finite number of its sign, so that an update is always one that nodes can
// read.
void MergeBySenders(absl::Span<const Components* const> senders, uint32_t elements,
                    Components* merged);

// x <- -1, 0 or +1; sign(+-0) = +0, and so is that of a NaN.
void SignInPlace(absl::Span<float> x);

// p <- p * (1 - eta * lambda); nothing at all if lambda is 0. `factor` = 1 - eta * lambda in
// float32.
float DecayFactor(float eta, float lambda);
void DecayInPlace(float factor, absl::Span<float> p);

// p <- p - eta * u.
void SgdStep(float eta, absl::Span<const float> u, absl::Span<float> p);

// target <- target + scale * x, element-wise, where x is a dense chunk and `target` its first
// element in a tensor whose rows are `stride` elements apart. Product and sum are rounded
// separately.
void AddScaledChunk(ChunkShape shape, float scale, absl::Span<const float> x, float* target,
                    size_t stride);

}  // namespace isthmus
