// Runs of a vector, as many at a time as a vector has lanes: each lane transforms one run and finds
// its threshold. A run gives the same bits whatever the runs beside it.
#if defined(ISTHMUS_KERNELS_CPU_RUNS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ISTHMUS_KERNELS_CPU_RUNS_INL_H_
#undef ISTHMUS_KERNELS_CPU_RUNS_INL_H_
#else
#define ISTHMUS_KERNELS_CPU_RUNS_INL_H_
#endif

#include <algorithm>

#include "kernels/chunk.h"
#include "kernels/cpu/dct-inl.h"
#include "kernels/cpu/select-inl.h"
#include "kernels/cpu/vectors-inl.h"
#include "kernels/demo.h"

HWY_BEFORE_NAMESPACE();
namespace isthmus {
namespace HWY_NAMESPACE {

// Batcher's odd-even merge sort of v[low] to v[low + n - 1], ascending, each lane by itself. It
// goes depth first, so that what it works on stays in registers.
template <size_t low, size_t n, size_t step>
HWY_INLINE void MergeHalves(FloatVec* HWY_RESTRICT v) {
  constexpr size_t kTwice = 2 * step;
  if constexpr (kTwice < n) {
    MergeHalves<low, n, kTwice>(v);
    MergeHalves<low + step, n, kTwice>(v);
    HWY_UNROLL(32)
    for (size_t i = low + step; i + step < low + n; i += kTwice) {
      const FloatVec smaller = hn::Min(v[i], v[i + step]);
      v[i + step] = hn::Max(v[i], v[i + step]);
      v[i] = smaller;
    }
  } else {
    const FloatVec smaller = hn::Min(v[low], v[low + step]);
    v[low + step] = hn::Max(v[low], v[low + step]);
    v[low] = smaller;
  }
}

template <size_t low, size_t n>
HWY_INLINE void SortLanes(FloatVec* HWY_RESTRICT v) {
  if constexpr (n > 1) {
    SortLanes<low, n / 2>(v);
    SortLanes<low + n / 2, n / 2>(v);
    MergeHalves<low, n, 1>(v);
  }
}

// Coefficients that are sorted at a time.
constexpr size_t kSorted = 32;

// The magnitudes of up to kSorted rows of `from`, the rest taken as zeros, ascending into `to`.
HWY_NOINLINE void SortMagnitudes(const float* HWY_RESTRICT from, size_t rows,
                                 float* HWY_RESTRICT to) {
  const FloatTag d;
  FloatVec v[kSorted];
  if (rows >= kSorted) {
    HWY_UNROLL(32)
    for (size_t i = 0; i < kSorted; ++i) v[i] = hn::Abs(hn::LoadU(d, from + i * kLanes));
  } else {
    for (size_t i = 0; i < kSorted; ++i) {
      v[i] = i < rows ? hn::Abs(hn::LoadU(d, from + i * kLanes)) : hn::Zero(d);
    }
  }
  SortLanes<0, kSorted>(v);
  HWY_UNROLL(32)
  for (size_t i = 0; i < kSorted; ++i) hn::Store(v[i], d, to + i * kLanes);
}

// The k-th largest magnitude in each lane of the n <= 2 * kSorted rows of `coefficients`. Of two
// sorted halves it is the largest, over all ways to take i from the first and k - i from the
// second, of the smallest number taken.
HWY_INLINE FloatVec RunThresholds(const float* HWY_RESTRICT coefficients, size_t n, size_t k) {
  const FloatTag d;
  HWY_ALIGN float first[kSorted * kLanes];
  HWY_ALIGN float second[kSorted * kLanes];
  SortMagnitudes(coefficients, n, first);
  SortMagnitudes(coefficients + kSorted * kLanes, n < kSorted ? 0 : n - kSorted, second);
  FloatVec threshold = hn::Zero(d);
  for (size_t i = k > kSorted ? k - kSorted : 0; i <= std::min(k, kSorted); ++i) {
    const size_t others = k - i;
    FloatVec taken = hn::Zero(d);
    if (i > 0) taken = hn::Load(d, first + (kSorted - i) * kLanes);
    if (others > 0) {
      const FloatVec smallest = hn::Load(d, second + (kSorted - others) * kLanes);
      taken = i > 0 ? hn::Min(taken, smallest) : smallest;
    }
    threshold = hn::Max(threshold, taken);
  }
  return threshold;
}

// The coefficients of kLanes runs that stand in scratch->first (rows of PaddedSide(n)), which stay:
// each lane's in scratch->second, rows of kLanes, and each run's, zeros behind, in its row of
// scratch->third.
HWY_INLINE void EncodeRuns(size_t n, ChunkScratch* scratch) {
  const size_t padded = PaddedSide(n);
  HWY_ALIGN float lanes[kChunkSideMax * kLanes];
  Transpose(kLanes, padded, scratch->first, padded, lanes, kLanes);
  DctColumns(n, lanes, kLanes, scratch->second);
  // The selection wants zeros behind each run.
  std::fill(scratch->second + n * kLanes, scratch->second + padded * kLanes, 0.0f);
  Transpose(padded, kLanes, scratch->second, kLanes, scratch->third, padded);
}

// The selected components of the first `count` of these runs into sent[0] and on.
HWY_INLINE void SelectOfRuns(size_t n, size_t count, uint32_t k, ChunkScratch* scratch,
                             Components* sent) {
  const size_t padded = PaddedSide(n);
  if (n > 2 * kSorted) {
    for (size_t i = 0; i < count; ++i) {
      SelectInto(scratch->third + i * padded, n, k, scratch->index, scratch->second, &sent[i]);
    }
    return;
  }
  HWY_ALIGN float thresholds[kLanes];
  hn::Store(RunThresholds(scratch->second, n, k), FloatTag(), thresholds);
  for (size_t i = 0; i < count; ++i) {
    TakeFrom(scratch->third + i * padded, n, k, MagnitudeOf(thresholds[i]), scratch->index,
             scratch->second, &sent[i]);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace isthmus
HWY_AFTER_NAMESPACE();

#endif  // ISTHMUS_KERNELS_CPU_RUNS_INL_H_
