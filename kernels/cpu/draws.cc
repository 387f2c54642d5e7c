// kernels/draws.h for each target of Highway.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/draws.cc"
#include <algorithm>

#include "hwy/foreach_target.h"  // IWYU pragma: keep
// It comes before all that is included once a target.
#include "hwy/highway.h"
#include "kernels/cpu/vectors-inl.h"
#include "kernels/draws.h"
#include "kernels/reference/outer.h"

HWY_BEFORE_NAMESPACE();
namespace isthmus {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR

void DrawTogether(const DrawKey& key, uint64_t first, float* HWY_RESTRICT out) {
  reference::UniformDraws(key, first, {out, kDrawsTogether});
}

#else

using WordTag = hn::ScalableTag<uint32_t>;
using WordVec = hn::Vec<WordTag>;
using WideTag = hn::Repartition<uint64_t, WordTag>;

// The upper and the lower halves of the products of all lanes with `multiplier`.
HWY_INLINE void Multiply(WordVec a, WordVec multiplier, WordVec* high, WordVec* low) {
  const WordTag d;
  const WideTag wide;
  const auto even = hn::MulEven(a, multiplier);
  const WordVec odd_lanes = hn::BitCast(d, hn::ShiftRight<32>(hn::BitCast(wide, a)));
  const auto odd = hn::MulEven(odd_lanes, multiplier);
  *high = hn::OddEven(hn::BitCast(d, odd), hn::BitCast(d, hn::ShiftRight<32>(even)));
  *low = hn::OddEven(hn::BitCast(d, hn::ShiftLeft<32>(odd)), hn::BitCast(d, even));
}

// The kDrawsTogether draws from element `first` on, a multiple of kDrawsTogether.
void DrawTogether(const DrawKey& key, uint64_t first, float* HWY_RESTRICT out) {
  const WordTag d;
  const hn::RebindToSigned<WordTag> d_signed;
  const FloatTag d_float;
  const uint64_t count = first / 4;  // 16 counters for 64 elements; the low word never wraps here
  const FloatVec step = hn::Set(d_float, 1.0f / (1 << 24));
  for (size_t i = 0; i < 16; i += kLanes) {
    WordVec c0 = hn::Iota(d, static_cast<uint32_t>(count + i));
    WordVec c1 = hn::Set(d, static_cast<uint32_t>(count >> 32));
    WordVec c2 = hn::Set(d, key.round);
    WordVec c3 = hn::Set(d, key.fragment);
    uint32_t key0 = static_cast<uint32_t>(key.seed);
    uint32_t key1 = static_cast<uint32_t>(key.seed >> 32);
    HWY_UNROLL(10)
    for (int round = 0; round < 10; ++round) {
      WordVec high0, low0, high1, low1;
      Multiply(c0, hn::Set(d, 0xD2511F53u), &high0, &low0);
      Multiply(c2, hn::Set(d, 0xCD9E8D57u), &high1, &low1);
      c0 = hn::Xor(hn::Xor(high1, c1), hn::Set(d, key0));
      c1 = low1;
      c2 = hn::Xor(hn::Xor(high0, c3), hn::Set(d, key1));
      c3 = low0;
      key0 += 0x9E3779B9u;
      key1 += 0xBB67AE85u;
    }
    const WordVec words[4] = {c0, c1, c2, c3};
    for (size_t w = 0; w < 4; ++w) {
      const auto whole = hn::BitCast(d_signed, hn::ShiftRight<8>(words[w]));
      hn::StoreU(hn::Mul(hn::ConvertTo(d_float, whole), step), d_float, out + 16 * w + i);
    }
  }
}

#endif  // HWY_TARGET == HWY_SCALAR

void DrawMany(const DrawKey& key, uint64_t first_element, float* out, size_t size) {
  uint64_t element = first_element;
  const uint64_t end = first_element + size;
  while (element < end) {
    const size_t skipped = element % kDrawsTogether;
    const size_t count = std::min<uint64_t>(kDrawsTogether - skipped, end - element);
    if (count == kDrawsTogether) {
      DrawTogether(key, element, out);
    } else {
      HWY_ALIGN float whole[kDrawsTogether];
      DrawTogether(key, element - skipped, whole);
      std::copy_n(whole + skipped, count, out);
    }
    out += count;
    element += count;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace isthmus
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace isthmus {
namespace {

HWY_EXPORT(DrawMany);

}  // namespace

void UniformDraws(const DrawKey& key, uint64_t first_element, absl::Span<float> out) {
  HWY_DYNAMIC_DISPATCH(DrawMany)(key, first_element, out.data(), out.size());
}

}  // namespace isthmus
#endif  // HWY_ONCE
