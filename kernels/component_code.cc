#include "kernels/component_code.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/limits.h"
#include "base/status_macros.h"
#include "kernels/bit_stream.h"
#include "kernels/component_scale.h"
#include "kernels/index_code.h"

namespace isthmus {
namespace {

constexpr size_t kFloatBytes = 4;
constexpr uint32_t kScaleBits = 8;
// Behind the bytes that are written, for whole words.
constexpr size_t kSlack = 8;

size_t BytesOf(size_t bits) { return (bits + 7) / 8; }

bool IsHalf(NumberFormat format) {
  return format == NumberFormat::kBf16 || format == NumberFormat::kF16;
}

template <class... Words>
absl::Status Wrong(uint32_t m, const Words&... words) {
  return absl::InvalidArgumentError(absl::StrCat("a chunk of ", m, " elements ", words...));
}

absl::Status Truncated(uint32_t m) { return Wrong(m, "is truncated"); }

absl::Status WrongIndex(uint32_t m, uint32_t count) {
  return Wrong(m, "with ", count, " components is truncated, or has an index beyond ", m - 1);
}

absl::Status WrongPadding(uint32_t m) { return Wrong(m, "has padding bits that are not 0"); }

// Bytes for at most so many, of which the caller gives back what it does not need.
class Room {
 public:
  Room(size_t bytes, std::vector<char>* out) : out_(out), begin_(out->size()) {
    out_->resize(begin_ + bytes + kSlack);
  }
  char* begin() { return out_->data() + begin_; }
  void EndAt(const char* end) { out_->resize(static_cast<size_t>(end - out_->data())); }

 private:
  std::vector<char>* const out_;
  const size_t begin_;
};

// The low four bits of up to 8 codes, the first lowest.
inline uint64_t NibblesOf(const int8_t* codes, uint32_t count) {
  uint64_t bits = 0;
  for (uint32_t j = 0; j < count; ++j) bits |= static_cast<uint64_t>(codes[j] & 15) << (4 * j);
  return bits;
}

char* PutValues(NumberFormat format, absl::Span<const float> values, BitWriter64* writer) {
  if (format == NumberFormat::kSign1) {
    for (size_t i = 0; i < values.size(); i += 32) {
      uint64_t bits = 0;
      const auto count = static_cast<uint32_t>(std::min<size_t>(32, values.size() - i));
      for (uint32_t j = 0; j < count; ++j) bits |= uint64_t{values[i + j] < 0.0f} << j;
      writer->Put(bits, count);
    }
    return writer->Pad();
  }
  if (format == NumberFormat::kInt8) {
    char* to = writer->Pad();
    *to = static_cast<char>(ScaledCodes(format, values, reinterpret_cast<int8_t*>(to + 1)));
    return to + 1 + values.size();
  }
  CodeBuffer codes(values.size());
  writer->Put(ScaledCodes(format, values, codes.data()), kScaleBits);
  for (size_t i = 0; i < values.size(); i += 8) {
    const auto count = static_cast<uint32_t>(std::min<size_t>(8, values.size() - i));
    const int8_t* const some = codes.data() + i;
    // A loop of known length is unrolled.
    writer->Put(count == 8 ? NibblesOf(some, 8) : NibblesOf(some, count), 4 * count);
  }
  return writer->Pad();
}

absl::Status ReadFloats(uint32_t m, absl::string_view bytes, std::vector<float>* value) {
  constexpr uint32_t kInfinity = 0x7f800000u;
  if (bytes.size() < value->size() * kFloatBytes) return Truncated(m);
  if (!value->empty()) std::memcpy(value->data(), bytes.data(), value->size() * kFloatBytes);
  uint32_t wrong = 0;
  for (const float& number : *value) {
    uint32_t bits;
    std::memcpy(&bits, &number, sizeof(bits));
    wrong |= static_cast<uint32_t>((bits & kInfinity) == kInfinity);
  }
  if (wrong == 0) return absl::OkStatus();
  return Wrong(m, "has a value that is not finite; only finite values are taken");
}

absl::Status WrongCode(uint32_t m, int32_t qmax) {
  return Wrong(m, "has a code beyond ", -qmax, " to ", qmax,
               ", or one that is not 0 under scale 0");
}

// Values that go on where the indices end, and the padding behind them.
absl::Status GetBitValues(uint32_t m, NumberFormat format, BitReader64* reader,
                          std::vector<float>* value) {
  const size_t count = value->size();
  if (format == NumberFormat::kSign1) {
    for (size_t i = 0; i < count; i += 32) {
      const auto some = static_cast<uint32_t>(std::min<size_t>(32, count - i));
      const uint64_t bits = reader->Get(some);
      for (uint32_t j = 0; j < some; ++j) {
        (*value)[i + j] = static_cast<float>(1 - 2 * static_cast<int32_t>((bits >> j) & 1));
      }
    }
  } else {
    CodeBuffer codes(count);
    const auto q = static_cast<uint32_t>(reader->Get(kScaleBits));
    for (size_t i = 0; i < count; i += 8) {
      const auto some = static_cast<uint32_t>(std::min<size_t>(8, count - i));
      const uint64_t bits = reader->Get(4 * some);
      for (uint32_t j = 0; j < some; ++j) {
        const auto nibble = static_cast<int32_t>((bits >> (4 * j)) & 15);
        codes.data()[i + j] = static_cast<int8_t>((nibble ^ 8) - 8);
      }
    }
    if (!ValuesOf(codes.data(), q, kInt4Max, absl::MakeSpan(*value))) return WrongCode(m, kInt4Max);
  }
  if (!reader->Pad()) return WrongPadding(m);
  return reader->past_end() ? Truncated(m) : absl::OkStatus();
}

// Values that stand on bytes; *used: bytes of the whole chunk.
absl::Status GetByteValues(uint32_t m, NumberFormat format, absl::string_view bytes,
                           BitReader64* reader, std::vector<float>* value, size_t* used) {
  if (!reader->Pad()) return WrongPadding(m);
  absl::string_view rest = bytes.substr(reader->bytes());
  const size_t count = value->size();
  if (format == NumberFormat::kF32) {
    ISTHMUS_RETURN_IF_ERROR(ReadFloats(m, rest, value));
    rest.remove_prefix(count * kFloatBytes);
  } else if (format == NumberFormat::kInt8) {
    if (rest.size() < 1 + count) return Truncated(m);
    const auto q = static_cast<uint8_t>(rest[0]);
    const auto* codes = reinterpret_cast<const int8_t*>(rest.data() + 1);
    if (!ValuesOf(codes, q, kInt8Max, absl::MakeSpan(*value))) return WrongCode(m, kInt8Max);
    rest.remove_prefix(1 + count);
  } else {
    NumberSettings settings;
    settings.format = format;
    ISTHMUS_RETURN_IF_ERROR(ReadNumbers(settings, &rest, absl::MakeSpan(*value)));
  }
  *used = bytes.size() - rest.size();
  return absl::OkStatus();
}

// The components of a sign1 chunk that have a sign.
Components WithoutZeros(const Components& components) {
  Components signs;
  for (size_t i = 0; i < components.size(); ++i) {
    if (components.value[i] == 0.0f) continue;
    signs.index.push_back(components.index[i]);
    signs.value.push_back(components.value[i]);
  }
  return signs;
}

bool HasZero(absl::Span<const float> values) {
  bool zero = false;
  for (const float value : values) zero |= value == 0.0f;
  return zero;
}

// The head of a merged chunk: how many, and which.
void PutMergedHead(uint32_t m, const Components& components, BitWriter64* writer) {
  ISTHMUS_CHECK(components.index.size() == components.value.size() && components.size() <= m);
  const auto count = static_cast<uint32_t>(components.size());
  writer->Put(count, IndexBits(m + 1));
  PutIndices(IndexCode(m, count), components.index, writer);
}

absl::Status GetMergedHead(uint32_t m, BitReader64* reader, Components* components) {
  const auto count = static_cast<uint32_t>(reader->Get(IndexBits(m + 1)));
  if (reader->past_end()) return Truncated(m);
  if (count > m) return Wrong(m, "says it holds ", count, " components; the limit is ", m);
  components->index.resize(count);
  components->value.resize(count);
  if (GetIndices(IndexCode(m, count), reader, absl::MakeSpan(components->index))) {
    return absl::OkStatus();
  }
  return WrongIndex(m, count);
}

size_t MergedHeadBitsMax(uint32_t m, size_t count) {
  return IndexBits(m + 1) + IndexCodeBitsMax(IndexCode(m, static_cast<uint32_t>(count)));
}

struct Vote {
  int32_t sum = 0;
  int32_t number = 1;
};

// In lowest terms: the least number whose quotient has these bits.
Vote VoteOf(float value) {
  for (int32_t number = 1; number <= static_cast<int32_t>(kNodesMax); ++number) {
    const float sum = std::nearbyint(value * static_cast<float>(number));
    if (sum / static_cast<float>(number) == value) return {static_cast<int32_t>(sum), number};
  }
  ISTHMUS_CHECK(false);  // no vote
  return {};
}

uint32_t BitLength(uint32_t n) { return 32 - static_cast<uint32_t>(__builtin_clz(n)); }

void PutVote(Vote vote, BitWriter64* writer) {
  const auto number = static_cast<uint32_t>(vote.number);
  const uint32_t length = BitLength(number);
  // Elias gamma: length - 1 zeros, a one, the bits below the highest.
  writer->Put(uint64_t{1} << (length - 1), length);
  writer->Put(number & ((1u << (length - 1)) - 1), length - 1);
  writer->Put(static_cast<uint32_t>(vote.sum + vote.number), IndexBits(2 * number + 1));
}

bool GetVote(BitReader64* reader, float* value) {
  const uint64_t word = reader->Peek();
  const auto zeros = static_cast<uint32_t>(__builtin_ctzll(word | (uint64_t{1} << 63)));
  if (zeros >= BitLength(kNodesMax)) return false;
  reader->Skip(zeros + 1);
  const auto number =
      static_cast<int32_t>((1u << zeros) | static_cast<uint32_t>(reader->Get(zeros)));
  const auto coded = static_cast<int32_t>(reader->Get(IndexBits(2 * number + 1)));
  const int32_t sum = coded - number;
  if (number > static_cast<int32_t>(kNodesMax) || sum > number) return false;
  if (std::gcd(std::abs(sum), number) != 1) return false;
  *value = static_cast<float>(sum) / static_cast<float>(number);
  return true;
}

constexpr size_t kVoteBitsMax = 32;

// Bytes of a contribution's chunk whose indices have so many bits.
size_t ChunkBytes(size_t index_bits, uint32_t k, NumberFormat format) {
  switch (format) {
    case NumberFormat::kF32:
      return BytesOf(index_bits) + size_t{k} * kFloatBytes;
    case NumberFormat::kInt8:
      return BytesOf(index_bits) + 1 + k;
    case NumberFormat::kInt4:
      return BytesOf(index_bits + kScaleBits + size_t{k} * 4);
    case NumberFormat::kSign1:
      return BytesOf(1 + index_bits + k);
    default:
      return BytesOf(index_bits) + size_t{k} * 2;
  }
}

}  // namespace

absl::Status CheckComponentFormat(NumberFormat format) {
  if (NumberName(format) != "unknown" && format != NumberFormat::kTernary) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("components are not sent as ", NumberName(format),
                                                 "; give f32, bf16, f16, int8, int4 or sign1"));
}

size_t ComponentChunkBytesMin(uint32_t m, uint32_t k, NumberFormat format) {
  if (k == 0) return 0;
  if (format == NumberFormat::kSign1) return BytesOf(1 + IndexBits(k));  // all are 0
  return ChunkBytes(IndexCodeBitsMin(IndexCode(m, k)), k, format);
}

size_t ComponentChunkBytesMax(uint32_t m, uint32_t k, NumberFormat format) {
  if (k == 0) return 0;
  size_t most = IndexCodeBitsMax(IndexCode(m, k));
  if (format == NumberFormat::kSign1) {
    // Fewer components may have longer indices, by what a Rice code wastes at worst.
    most = std::max<size_t>(most + IndexBits(k), size_t{IndexBits(m)} * k + IndexBits(k));
  }
  return ChunkBytes(most, k, format);
}

void RoundValues(NumberFormat format, absl::Span<float> values) {
  if (values.empty() || format == NumberFormat::kF32 || format == NumberFormat::kSign1) return;
  if (IsHalf(format)) {
    NumberSettings settings;
    settings.format = format;
    thread_local std::vector<char> bytes;
    bytes.clear();
    AppendNumbers(settings, values, {}, &bytes);
    absl::string_view view(bytes.data(), bytes.size());
    ISTHMUS_CHECK(ReadNumbers(settings, &view, values).ok());
    return;
  }
  CodeBuffer codes(values.size());
  const uint32_t q = ScaledCodes(format, values, codes.data());
  ISTHMUS_CHECK(ValuesOf(codes.data(), q, CodeMaxOf(format), values));
}

ValueRounder RounderOf(NumberFormat format) {
  switch (format) {
    case NumberFormat::kBf16:
      return [](absl::Span<float> values) { RoundValues(NumberFormat::kBf16, values); };
    case NumberFormat::kF16:
      return [](absl::Span<float> values) { RoundValues(NumberFormat::kF16, values); };
    case NumberFormat::kInt8:
      return [](absl::Span<float> values) { RoundValues(NumberFormat::kInt8, values); };
    case NumberFormat::kInt4:
      return [](absl::Span<float> values) { RoundValues(NumberFormat::kInt4, values); };
    default:
      return nullptr;
  }
}

void AppendComponentChunk(uint32_t m, uint32_t k, NumberFormat format, const Components& components,
                          std::vector<char>* out) {
  ISTHMUS_CHECK(components.index.size() == k && components.value.size() == k);
  if (k == 0) return;
  Room room(ComponentChunkBytesMax(m, k, format), out);
  BitWriter64 writer(room.begin());
  if (format == NumberFormat::kSign1) {
    const bool has_zero = HasZero(components.value);
    writer.Put(has_zero ? 1 : 0, 1);
    if (has_zero) {
      const Components signs = WithoutZeros(components);
      const auto count = static_cast<uint32_t>(signs.size());
      writer.Put(count, IndexBits(k));
      PutIndices(IndexCode(m, count), signs.index, &writer);
      return room.EndAt(PutValues(format, signs.value, &writer));
    }
  }
  PutIndices(IndexCode(m, k), components.index, &writer);
  if (format != NumberFormat::kF32 && !IsHalf(format)) {
    return room.EndAt(PutValues(format, components.value, &writer));
  }
  char* to = writer.Pad();
  if (format == NumberFormat::kF32) {
    std::memcpy(to, components.value.data(), k * kFloatBytes);
    return room.EndAt(to + k * kFloatBytes);
  }
  room.EndAt(to);
  NumberSettings settings;
  settings.format = format;
  AppendNumbers(settings, components.value, {}, out);
}

absl::Status ReadComponentChunk(uint32_t m, uint32_t k, NumberFormat format,
                                absl::string_view* bytes, Components* components) {
  ISTHMUS_CHECK(k <= m);
  components->clear();
  if (k == 0) return absl::OkStatus();
  BitReader64 reader(*bytes);
  uint32_t count = k;
  if (format == NumberFormat::kSign1 && reader.Get(1) == 1) {
    count = static_cast<uint32_t>(reader.Get(IndexBits(k)));
    if (count >= k) {
      return Wrong(m, "says that ", count, " of ", k, " components have a sign; fewer than all do");
    }
  }
  components->index.resize(count);
  components->value.resize(count);
  if (!GetIndices(IndexCode(m, count), &reader, absl::MakeSpan(components->index))) {
    return WrongIndex(m, count);
  }
  size_t used = 0;
  if (format == NumberFormat::kInt4 || format == NumberFormat::kSign1) {
    ISTHMUS_RETURN_IF_ERROR(GetBitValues(m, format, &reader, &components->value));
    used = reader.bytes();
  } else {
    ISTHMUS_RETURN_IF_ERROR(GetByteValues(m, format, *bytes, &reader, &components->value, &used));
  }
  bytes->remove_prefix(used);
  return absl::OkStatus();
}

void AppendMergedComponents(uint32_t m, const Components& components, std::vector<char>* out) {
  const size_t count = components.size();
  Room room(BytesOf(MergedHeadBitsMax(m, count)) + count * kFloatBytes, out);
  BitWriter64 writer(room.begin());
  PutMergedHead(m, components, &writer);
  char* to = writer.Pad();
  if (count > 0) std::memcpy(to, components.value.data(), count * kFloatBytes);
  room.EndAt(to + count * kFloatBytes);
}

absl::Status ReadMergedComponents(uint32_t m, absl::string_view* bytes, Components* components) {
  BitReader64 reader(*bytes);
  ISTHMUS_RETURN_IF_ERROR(GetMergedHead(m, &reader, components));
  size_t used = 0;
  ISTHMUS_RETURN_IF_ERROR(
      GetByteValues(m, NumberFormat::kF32, *bytes, &reader, &components->value, &used));
  bytes->remove_prefix(used);
  return absl::OkStatus();
}

void AppendMergedVotes(uint32_t m, const Components& components, std::vector<char>* out) {
  const size_t count = components.size();
  Room room(BytesOf(MergedHeadBitsMax(m, count) + count * kVoteBitsMax), out);
  BitWriter64 writer(room.begin());
  PutMergedHead(m, components, &writer);
  for (const float value : components.value) PutVote(VoteOf(value), &writer);
  room.EndAt(writer.Pad());
}

absl::Status ReadMergedVotes(uint32_t m, absl::string_view* bytes, Components* components) {
  BitReader64 reader(*bytes);
  ISTHMUS_RETURN_IF_ERROR(GetMergedHead(m, &reader, components));
  for (float& value : components->value) {
    if (!GetVote(&reader, &value)) {
      return Wrong(m, "is truncated, or has a vote that is no sum of at most ", kNodesMax,
                   " signs in lowest terms");
    }
  }
  if (!reader.Pad()) return WrongPadding(m);
  if (reader.past_end()) return Truncated(m);
  bytes->remove_prefix(reader.bytes());
  return absl::OkStatus();
}

void AppendMergedDense(uint32_t m, const Components& components, std::vector<char>* out) {
  const size_t begin = out->size();
  out->resize(begin + m * kFloatBytes);
  for (size_t i = 0; i < components.size(); ++i) {
    ISTHMUS_CHECK(components.index[i] < m);
    std::memcpy(out->data() + begin + components.index[i] * kFloatBytes, &components.value[i],
                kFloatBytes);
  }
}

absl::Status ReadMergedDense(uint32_t m, absl::string_view* bytes, Components* components) {
  components->index.resize(m);
  std::iota(components->index.begin(), components->index.end(), 0);
  components->value.resize(m);
  ISTHMUS_RETURN_IF_ERROR(ReadFloats(m, *bytes, &components->value));
  bytes->remove_prefix(m * kFloatBytes);
  return absl::OkStatus();
}

}  // namespace isthmus
