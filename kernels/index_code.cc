#include "kernels/index_code.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/chunk.h"

namespace isthmus {
namespace {

// 0.4812 = -ln((sqrt(5) - 1) / 2): where one more low bit begins to pay.
constexpr uint64_t kPart = 4812;
constexpr uint64_t kWhole = 10000;

uint32_t LowBits(uint32_t m, uint32_t j) {
  const uint64_t wanted = kPart * (uint64_t{2} * m - j + 1);
  uint64_t have = kWhole * 2 * (uint64_t{j} + 1);
  uint32_t bits = 0;
  for (; have < wanted; have *= 2) ++bits;
  return bits;
}

// Positions in truncated binary: how many have the fewer bits.
uint32_t ShortOnes(uint32_t m) { return (1u << IndexBits(m)) - m; }

void PutOne(uint32_t m, uint32_t at, BitWriter64* writer) {
  const uint32_t bits = IndexBits(m);
  if (bits == 0) return;
  const uint32_t shorts = ShortOnes(m);
  if (at < shorts) return writer->Put(at, bits - 1);
  writer->Put((at + shorts) >> 1, bits - 1);
  writer->Put((at + shorts) & 1, 1);
}

uint32_t GetOne(uint32_t m, BitReader64* reader) {
  const uint32_t bits = IndexBits(m);
  if (bits == 0) return 0;
  const uint32_t shorts = ShortOnes(m);
  const auto upper = static_cast<uint32_t>(reader->Get(bits - 1));
  if (upper < shorts) return upper;
  return 2 * upper + static_cast<uint32_t>(reader->Get(1)) - shorts;
}

// Puts positions one after the other.
class GapPutter {
 public:
  GapPutter(const IndexCode& code, BitWriter64* writer)
      : elements_(code.elements),
        low_bits_(code.low_bits),
        low_mask_((1u << code.low_bits) - 1),
        writer_(writer) {}

  void Put(uint32_t at) {
    ISTHMUS_CHECK(at >= next_ && at < elements_);
    const uint32_t gap = at - next_;
    const uint32_t zeros = gap >> low_bits_;
    const uint64_t tail = 1 | (uint64_t{gap & low_mask_} << 1);
    const uint32_t bits = zeros + 1 + low_bits_;
    next_ = at + 1;
    if (bits <= kBitsAtOnce) return writer_->Put(tail << zeros, bits);
    writer_->PutZeros(zeros);
    writer_->Put(tail, 1 + low_bits_);
  }

 private:
  const uint32_t elements_, low_bits_, low_mask_;
  BitWriter64* const writer_;
  uint32_t next_ = 0;
};

// A gap with many zeros, or near the end. False: they pass `zeros_max`.
bool GetLongGap(uint32_t low_bits, uint32_t zeros_max, BitReader64* reader, uint32_t* gap) {
  uint32_t zeros = 0;
  uint64_t word = reader->Peek();
  for (; (word & 0xffffffff) == 0; word = reader->Peek()) {
    zeros += 32;
    reader->Skip(32);
    if (zeros > zeros_max || reader->past_end()) return false;
  }
  const auto last = static_cast<uint32_t>(__builtin_ctzll(word));
  zeros += last;
  reader->Skip(last + 1);
  if (zeros > zeros_max) return false;
  *gap = (zeros << low_bits) | static_cast<uint32_t>(reader->Get(low_bits));
  return true;
}

// Calls visit(position) for each of code.coded positions, which are below code.elements. False:
// one is not.
template <typename Visit>
bool GetGaps(const IndexCode& code, BitReader64* reader, const Visit& visit) {
  const uint32_t low_bits = code.low_bits;
  const uint32_t low_mask = (1u << low_bits) - 1;
  const uint32_t zeros_max = code.elements >> low_bits;
  const uint32_t zeros_fast = kBitsAtOnce - 1 - low_bits;
  uint32_t next = 0;
  for (uint32_t i = 0; i < code.coded; ++i) {
    const uint64_t word = reader->Peek();
    // A one at the top ends every run of zeros.
    const auto zeros = static_cast<uint32_t>(__builtin_ctzll(word | (uint64_t{1} << 63)));
    uint32_t gap;
    if (zeros <= zeros_fast) {
      gap = (zeros << low_bits) | (static_cast<uint32_t>(word >> (zeros + 1)) & low_mask);
      reader->Skip(zeros + 1 + low_bits);
    } else if (!GetLongGap(low_bits, zeros_max, reader, &gap)) {
      return false;
    }
    const uint32_t at = next + gap;
    // Those that follow need room, too; so what is not chosen never leaves room for more than k.
    if (at >= code.elements - (code.coded - 1 - i)) return false;
    visit(at);
    next = at + 1;
  }
  return true;
}

}  // namespace

IndexCode::IndexCode(uint32_t m, uint32_t k)
    : elements(m), count(k), coded(std::min(k, m - k)), is_complement(k > m - k) {
  ISTHMUS_CHECK(k <= m);
  if (coded > 1) low_bits = LowBits(m, coded);
}

size_t IndexCodeBitsMin(const IndexCode& code) {
  if (code.coded == 0 || code.elements == 1) return 0;
  if (code.coded == 1) return IndexBits(code.elements) - (ShortOnes(code.elements) > 0 ? 1 : 0);
  return size_t{code.coded} * (1 + code.low_bits);
}

size_t IndexCodeBitsMax(const IndexCode& code) {
  if (code.coded == 0) return 0;
  if (code.coded == 1) return IndexBits(code.elements);
  return size_t{code.coded} * (1 + code.low_bits) + ((code.elements - code.coded) >> code.low_bits);
}

void PutIndices(const IndexCode& code, absl::Span<const uint32_t> index, BitWriter64* writer) {
  ISTHMUS_CHECK(index.size() == code.count);
  if (code.coded == 0) return;
  if (code.coded == 1 && !code.is_complement) {
    ISTHMUS_CHECK(index[0] < code.elements);
    return PutOne(code.elements, index[0], writer);
  }
  if (!code.is_complement) {
    GapPutter putter(code, writer);
    for (const uint32_t at : index) putter.Put(at);
    return;
  }
  // Positions that are not chosen: those before each that is, and those behind the last.
  GapPutter putter(code, writer);
  uint32_t left = code.coded;
  const auto put = [&](uint32_t begin, uint32_t end) {
    for (uint32_t at = begin; at < end; ++at, --left) {
      ISTHMUS_CHECK(left > 0);
      if (code.coded == 1) {
        PutOne(code.elements, at, writer);
      } else {
        putter.Put(at);
      }
    }
  };
  uint32_t next = 0;
  for (const uint32_t at : index) {
    ISTHMUS_CHECK(at >= next && at < code.elements);
    put(next, at);
    next = at + 1;
  }
  put(next, code.elements);
}

bool GetIndices(const IndexCode& code, BitReader64* reader, absl::Span<uint32_t> index) {
  ISTHMUS_CHECK(index.size() == code.count);
  uint32_t* to = index.data();
  if (!code.is_complement) {
    if (code.coded == 1) {
      *to = GetOne(code.elements, reader);
      return *to < code.elements && !reader->past_end();
    }
    return GetGaps(code, reader, [&](uint32_t at) { *to++ = at; }) && !reader->past_end();
  }
  uint32_t next = 0;
  const auto skip = [&](uint32_t at) {
    for (; next < at; ++next) *to++ = next;
    ++next;
  };
  if (code.coded == 1) {
    const uint32_t at = GetOne(code.elements, reader);
    if (at >= code.elements) return false;
    skip(at);
  } else if (code.coded > 1 && !GetGaps(code, reader, skip)) {
    return false;
  }
  for (; next < code.elements; ++next) *to++ = next;
  return !reader->past_end();
}

}  // namespace isthmus
