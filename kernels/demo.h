// The plain functions of one DeMo step (arXiv 2411.19870; FlexDeMo, arXiv 2502.06728), over spans
// and one chunk at a time. This header is shared by all implementations; kernels/reference/ is the
// slow obvious one that the faster ones are compared with.
//
// Bit-equal everywhere (a replicated state machine runs on them): MergeBySenders, DecodeComponents,
// SignInPlace, DecayInPlace, SgdStep, StepChunk, AdamWStep. Their order of operations is stated
// here, multiply and add are separate roundings, nothing is flushed to zero. EncodeChunk,
// SelectTopK and ReserveChunk are local to a node and only meet a tolerance.
//
// All of them may run on several threads at once, on different data.
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

// Working memory of ReserveChunk and StepChunk, so that they allocate nothing: one a thread, made
// once (std::make_unique<ChunkScratch>(); 256 KB) and used for chunks of any shape. What it holds
// between calls means nothing.
struct alignas(64) ChunkScratch {
  // A chunk of the largest side, and behind it room for one vector that is written whole.
  static constexpr size_t kElements = 128 * 128 + 16;
  float first[kElements];
  float second[kElements];
  float third[kElements];
  uint32_t index[kElements];
};

struct ReserveRule {
  uint32_t k = 1;      // components to take, 1 <= k <= elements of the chunk
  float beta = 0.0f;   // decay of the momentum, [0, 1)
  float eta = 0.0f;    // learning rate: the weight of the gradient
  float alpha = 1.0f;  // share of what is sent that leaves the momentum, (0, 1]
};

// One chunk's way from the gradient to what is sent, in one pass over its memory:
//   d <- beta * d + eta * g;  sent <- SelectTopK(EncodeChunk(d), k);
//   d <- d - alpha * DecodeComponents(sent)
// `d` and `g` point at the chunk's first element; their rows are `stride` and `g_stride` elements
// apart. A null `g` is a gradient of zeros, with the same bits. The momentum and what is subtracted
// have the bits of UpdateMomentum, DecodeComponents and AddScaledChunk; which components are sent
// meets the tolerance of EncodeChunk. Source: DeMo (arXiv 2411.19870), algorithm 1; momentum of the
// published code.
void ReserveChunk(ChunkShape shape, const ReserveRule& rule, const float* g, size_t g_stride,
                  float* d, size_t stride, ChunkScratch* scratch, Components* sent);

// The same for `count` runs of `cols` elements that follow each other without a gap, as those of a
// vector do: sent[i] is what goes out of the i-th. The bits are those of `count` calls of
// ReserveChunk, in about half the time.
void ReserveRuns(uint32_t cols, size_t count, const ReserveRule& rule, const float* g, float* d,
                 ChunkScratch* scratch, Components* sent);

struct StepRule {
  bool sign = true;           // move by the sign of the update, else by the update itself
  float eta = 0.0f;           // learning rate
  float decay_factor = 1.0f;  // DecayFactor(eta, lambda); 1 for no decay
};

// One chunk's way from what was merged to the parameters, in one pass over its memory:
//   p <- decay_factor * p;  u <- DecodeComponents(merged), SignInPlace(u) if `sign`;
//   p <- p - eta * u
// with the bits of the functions named (a decay factor of 1 changes none).
void StepChunk(ChunkShape shape, const StepRule& rule, const Components& merged, float* p,
               size_t stride, ChunkScratch* scratch);

// The same for `count` runs of `cols` elements that follow each other without a gap.
void StepRuns(uint32_t cols, size_t count, const StepRule& rule, const Components* merged,
              float* p);

struct AdamWRule {
  float beta1 = 0.9f;
  float beta2 = 0.999f;
  float eps = 1e-8f;
  float eta = 0.0f;           // learning rate
  float decay_factor = 1.0f;  // DecayFactor(eta, lambda); 1 for no decay
  float bias1 = 1.0f;         // 1 - beta1^t at step t >= 1, in (0, 1]
  float bias2 = 1.0f;         // 1 - beta2^t
};

// AdamW with decoupled decay (arXiv 1711.05101), element-wise on the gradient or update `u`; p, m
// and v have its size. Stated order, each operation rounded by itself to float32:
//   m <- m + (1 - beta1) * (u - m)
//   v <- beta2 * v + ((1 - beta2) * u) * u
//   p <- decay_factor * p;  p <- p - (rate * m) / (sqrt(v) / root + eps)
// where 1 - beta1, 1 - beta2, rate = eta / bias1 and root = sqrt(bias2) are computed once.
void AdamWStep(const AdamWRule& rule, absl::Span<const float> u, absl::Span<float> p,
               absl::Span<float> m, absl::Span<float> v);

}  // namespace isthmus
