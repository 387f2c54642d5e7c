#include "kernels/sign_plane.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "kernels/bit_stream.h"
#include "kernels/chunk.h"
#include "kernels/index_code.h"

namespace isthmus {
namespace {

constexpr size_t kSlack = 8;
constexpr uint32_t kAtOnce = 32;

void PutSigns(absl::Span<const float> values, BitWriter64* writer) {
  for (size_t i = 0; i < values.size(); i += kAtOnce) {
    const auto count = static_cast<uint32_t>(std::min<size_t>(kAtOnce, values.size() - i));
    uint64_t bits = 0;
    for (uint32_t j = 0; j < count; ++j) bits |= uint64_t{values[i + j] < 0.0f} << j;
    writer->Put(bits, count);
  }
}

void GetSigns(BitReader64* reader, absl::Span<float> values) {
  for (size_t i = 0; i < values.size(); i += kAtOnce) {
    const auto count = static_cast<uint32_t>(std::min<size_t>(kAtOnce, values.size() - i));
    const uint64_t bits = reader->Get(count);
    for (uint32_t j = 0; j < count; ++j) {
      values[i + j] = static_cast<float>(1 - 2 * static_cast<int32_t>((bits >> j) & 1));
    }
  }
}

template <class... Words>
absl::Status Wrong(size_t m, const Words&... words) {
  return absl::InvalidArgumentError(absl::StrCat("signs of ", m, " elements ", words...));
}

}  // namespace

size_t SignPlaneBytes(size_t m) { return (1 + m + 7) / 8; }

void AppendSignPlane(absl::Span<const float> values, std::vector<char>* out) {
  const auto m = static_cast<uint32_t>(values.size());
  ISTHMUS_CHECK(m >= 1);
  std::vector<uint32_t> zeros;
  bool has_zero = false;
  for (const float value : values) has_zero |= value == 0.0f;
  for (uint32_t i = 0; has_zero && i < m; ++i) {
    if (values[i] == 0.0f) zeros.push_back(i);
  }
  const auto zero_count = static_cast<uint32_t>(zeros.size());
  const IndexCode code(m, zero_count);
  const size_t begin = out->size();
  const size_t most = 1 + IndexBits(m) + IndexCodeBitsMax(code) + m;
  out->resize(begin + (most + 7) / 8 + kSlack);
  BitWriter64 writer(out->data() + begin);
  writer.Put(has_zero ? 1 : 0, 1);
  if (!has_zero) {
    PutSigns(values, &writer);
  } else {
    writer.Put(zero_count - 1, IndexBits(m));
    PutIndices(code, zeros, &writer);
    std::vector<float> others;
    others.reserve(m - zero_count);
    for (const float value : values) {
      if (value != 0.0f) others.push_back(value);
    }
    PutSigns(others, &writer);
  }
  out->resize(static_cast<size_t>(writer.Pad() - out->data()));
}

absl::Status ReadSignPlane(absl::string_view* bytes, absl::Span<float> values) {
  const auto m = static_cast<uint32_t>(values.size());
  ISTHMUS_CHECK(m >= 1);
  BitReader64 reader(*bytes);
  if (reader.Get(1) == 0) {
    if (bytes->size() < SignPlaneBytes(m)) return Wrong(m, "are truncated");
    GetSigns(&reader, values);
  } else {
    const auto zero_count = static_cast<uint32_t>(reader.Get(IndexBits(m))) + 1;
    if (reader.past_end()) return Wrong(m, "are truncated");
    if (zero_count > m) return Wrong(m, "say that ", zero_count, " are 0; the limit is ", m);
    std::vector<uint32_t> zeros(zero_count);
    if (!GetIndices(IndexCode(m, zero_count), &reader, absl::MakeSpan(zeros))) {
      return Wrong(m, "are truncated, or have an index beyond ", m - 1);
    }
    std::vector<float> others(m - zero_count);
    GetSigns(&reader, absl::MakeSpan(others));
    uint32_t next = 0;
    const float* other = others.data();
    for (const uint32_t zero : zeros) {
      std::copy_n(other, zero - next, values.data() + next);
      other += zero - next;
      values[zero] = 0.0f;
      next = zero + 1;
    }
    std::copy_n(other, m - next, values.data() + next);
  }
  if (!reader.Pad()) return Wrong(m, "have padding bits that are not 0");
  if (reader.past_end()) return Wrong(m, "are truncated");
  bytes->remove_prefix(reader.bytes());
  return absl::OkStatus();
}

}  // namespace isthmus
