#include "kernels/chunk.h"

#include <cmath>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/limits.h"
#include "base/status_macros.h"

namespace isthmus {
namespace {

constexpr size_t kFloatBytes = 4;
constexpr size_t kBitsPerByte = 8;

size_t BytesOfBits(size_t bits) { return (bits + kBitsPerByte - 1) / kBitsPerByte; }

// The sides do not matter to the coding, and runs of chunk_topk are longer than those of a DCT.
void CheckShape(ChunkShape shape) {
  ISTHMUS_CHECK(shape.rows >= 1 && shape.cols >= 1);
  ISTHMUS_CHECK(uint64_t{shape.rows} * shape.cols <= uint64_t{kChunkSideMax} * kChunkSideMax);
}

// Bytes of `count` components with indices, behind `count_bits` bits that say how many.
size_t SparseBytes(uint32_t elements, uint32_t count, uint32_t count_bits) {
  return BytesOfBits(count_bits + size_t{count} * IndexBits(elements)) + count * kFloatBytes;
}

size_t DenseBytes(uint32_t elements) { return elements * kFloatBytes; }

bool MergedIsDense(uint32_t elements, uint32_t count) {
  return SparseBytes(elements, count, IndexBits(elements + 1)) >= DenseBytes(elements);
}

// Appends numbers of a few bits each, the least significant bit first.
class BitWriter {
 public:
  explicit BitWriter(std::vector<char>* out) : out_(out) {}

  void Write(uint32_t value, uint32_t bits) {
    pending_ |= uint64_t{value} << pending_bits_;
    pending_bits_ += bits;
    while (pending_bits_ >= kBitsPerByte) Flush(kBitsPerByte);
  }

  // Fills the last byte with zeros.
  void Pad() {
    if (pending_bits_ > 0) Flush(pending_bits_);
  }

 private:
  void Flush(uint32_t bits) {
    out_->push_back(static_cast<char>(pending_ & 0xff));
    pending_ >>= kBitsPerByte;
    pending_bits_ -= bits;
  }

  std::vector<char>* out_;
  uint64_t pending_ = 0;
  uint32_t pending_bits_ = 0;
};

// Reads what BitWriter wrote. The caller has checked that `bytes` holds all that it reads.
class BitReader {
 public:
  explicit BitReader(absl::string_view bytes) : bytes_(bytes) {}

  uint32_t Read(uint32_t bits) {
    while (pending_bits_ < bits) {
      ISTHMUS_CHECK(next_ < bytes_.size());
      pending_ |= uint64_t{static_cast<uint8_t>(bytes_[next_++])} << pending_bits_;
      pending_bits_ += kBitsPerByte;
    }
    const uint32_t value = static_cast<uint32_t>(pending_ & ((uint64_t{1} << bits) - 1));
    pending_ >>= bits;
    pending_bits_ -= bits;
    return value;
  }

 private:
  absl::string_view bytes_;
  size_t next_ = 0;
  uint64_t pending_ = 0;
  uint32_t pending_bits_ = 0;
};

void AppendFloat(float value, std::vector<char>* out) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  for (size_t i = 0; i < kFloatBytes; ++i) {
    out->push_back(static_cast<char>((bits >> (i * kBitsPerByte)) & 0xff));
  }
}

std::string Name(ChunkShape shape) { return absl::StrCat(shape.rows, " x ", shape.cols, " chunk"); }

absl::Status Truncated(ChunkShape shape, size_t needed, size_t left) {
  return absl::InvalidArgumentError(absl::StrCat(Name(shape), " is truncated: it takes ", needed,
                                                 " bytes and ", left, " are left"));
}

// All values in order; positions without a component are +0.
void AppendDense(ChunkShape shape, const Components& components, std::vector<char>* out) {
  uint32_t next = 0;
  for (size_t i = 0; i < components.size(); ++i) {
    const uint32_t at = components.index[i];
    ISTHMUS_CHECK(at >= next && at < shape.elements());
    for (; next < at; ++next) AppendFloat(0.0f, out);
    AppendFloat(components.value[i], out);
    ++next;
  }
  for (; next < shape.elements(); ++next) AppendFloat(0.0f, out);
}

// A dense contribution of fewer than m components marks what was not sent by +0, so a component
// that is zero is written as -0. Decoding does not tell the two apart.
Components WithNegativeZeros(const Components& components) {
  Components marked = components;
  for (float& value : marked.value) {
    if (value == 0.0f) value = -0.0f;
  }
  return marked;
}

// The other side of WithNegativeZeros: what was not sent is no component.
void DropPositiveZeros(Components* components) {
  size_t kept = 0;
  for (size_t i = 0; i < components->size(); ++i) {
    if (components->value[i] == 0.0f && !std::signbit(components->value[i])) continue;
    components->index[kept] = components->index[i];
    components->value[kept++] = components->value[i];
  }
  components->index.resize(kept);
  components->value.resize(kept);
}

void AppendIndices(ChunkShape shape, const Components& components, BitWriter* writer) {
  const uint32_t bits = IndexBits(shape.elements());
  uint32_t next = 0;
  for (const uint32_t at : components.index) {
    ISTHMUS_CHECK(at >= next && at < shape.elements());
    writer->Write(at, bits);
    next = at + 1;
  }
}

absl::Status IndexOutOfRange(ChunkShape shape, uint32_t i, uint32_t count, uint32_t at) {
  return absl::InvalidArgumentError(absl::StrCat("component ", i, " of ", count, " of a ",
                                                 Name(shape), " has index ", at, "; the limit is ",
                                                 shape.elements() - 1));
}

absl::Status IndicesFall(ChunkShape shape, uint32_t i, uint32_t count, uint32_t at,
                         uint32_t before) {
  return absl::InvalidArgumentError(
      absl::StrCat("component ", i, " of ", count, " of a ", Name(shape), " has index ", at,
                   "; indices must ascend and the one before it is ", before));
}

// The usual case, most of the time of a fold: all indices at once, each from the eight bytes that
// begin with its first one. False where these do not lie in `own` (one component alone), or some
// index is wrong.
bool ReadIndicesFast(ChunkShape shape, uint32_t first_bit, absl::string_view own,
                     absl::Span<uint32_t> index) {
  const uint32_t elements = shape.elements();
  const uint32_t bits = IndexBits(elements);
  const uint64_t mask = (uint64_t{1} << bits) - 1;
  if (index.empty()) return true;
  const size_t last_bit = first_bit + (index.size() - 1) * bits;
  if (last_bit / kBitsPerByte + sizeof(uint64_t) > own.size()) return false;
  uint32_t wrong = 0;
  uint32_t next = 0;  // the least index that may come
  for (size_t i = 0, bit = first_bit; i < index.size(); ++i, bit += bits) {
    uint64_t word;
    std::memcpy(&word, own.data() + bit / kBitsPerByte, sizeof(word));
    const uint32_t at = static_cast<uint32_t>((word >> (bit % kBitsPerByte)) & mask);
    wrong |= static_cast<uint32_t>(at < next) | static_cast<uint32_t>(at >= elements);
    next = at + 1;
    index[i] = at;
  }
  return wrong == 0;
}

// `count` indices behind `first_bit` bits, and the padding behind them; `own` holds them all.
absl::Status ReadIndices(ChunkShape shape, uint32_t first_bit, uint32_t count,
                         absl::string_view own, std::vector<uint32_t>* index) {
  const uint32_t bits = IndexBits(shape.elements());
  index->resize(count);
  if (!ReadIndicesFast(shape, first_bit, own, absl::MakeSpan(*index))) {
    BitReader reader(own);
    reader.Read(first_bit);
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t at = reader.Read(bits);
      if (at >= shape.elements()) return IndexOutOfRange(shape, i, count, at);
      if (i > 0 && at <= (*index)[i - 1]) {
        return IndicesFall(shape, i, count, at, (*index)[i - 1]);
      }
      (*index)[i] = at;
    }
  }
  const size_t end_bit = first_bit + size_t{count} * bits;
  if (end_bit % kBitsPerByte == 0) return absl::OkStatus();
  const uint8_t last = static_cast<uint8_t>(own[end_bit / kBitsPerByte]);
  if (last >> (end_bit % kBitsPerByte) == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(Name(shape), " has padding bits that are not 0 behind its indices"));
}

// `bytes` holds exactly `count` values.
absl::Status ReadValues(ChunkShape shape, absl::string_view bytes, uint32_t count,
                        std::vector<float>* value) {
  constexpr uint32_t kInfinity = 0x7f800000u;
  value->resize(count);
  if (count > 0) std::memcpy(value->data(), bytes.data(), count * kFloatBytes);
  uint32_t wrong = 0;
  for (uint32_t i = 0; i < count; ++i) {
    uint32_t number;
    std::memcpy(&number, value->data() + i, sizeof(number));
    wrong |= static_cast<uint32_t>((number & kInfinity) == kInfinity);
  }
  for (uint32_t i = 0; wrong != 0 && i < count; ++i) {
    if (!std::isfinite((*value)[i])) {
      return absl::InvalidArgumentError(absl::StrCat("component ", i, " of ", count, " of a ",
                                                     Name(shape), " has the value ", (*value)[i],
                                                     "; only finite values are taken"));
    }
  }
  return absl::OkStatus();
}

void FillAllIndices(uint32_t elements, std::vector<uint32_t>* index) {
  index->resize(elements);
  for (uint32_t i = 0; i < elements; ++i) (*index)[i] = i;
}

}  // namespace

uint32_t IndexBits(uint32_t count) {
  if (count <= 1) return 0;
  return 32 - static_cast<uint32_t>(__builtin_clz(count - 1));
}

bool ContributionIsDense(uint32_t elements, uint32_t k) {
  return SparseBytes(elements, k, 0) >= DenseBytes(elements);
}

size_t ContributionChunkBytes(ChunkShape shape, uint32_t k) {
  CheckShape(shape);
  ISTHMUS_CHECK(k <= shape.elements());
  return ContributionIsDense(shape.elements(), k) ? DenseBytes(shape.elements())
                                                  : SparseBytes(shape.elements(), k, 0);
}

void AppendContributionChunk(ChunkShape shape, uint32_t k, const Components& components,
                             std::vector<char>* out) {
  CheckShape(shape);
  ISTHMUS_CHECK(k <= shape.elements());
  ISTHMUS_CHECK(components.size() == k && components.value.size() == k);
  if (ContributionIsDense(shape.elements(), k)) {
    const bool all_sent = k == shape.elements();
    return AppendDense(shape, all_sent ? components : WithNegativeZeros(components), out);
  }
  BitWriter writer(out);
  AppendIndices(shape, components, &writer);
  writer.Pad();
  for (const float value : components.value) AppendFloat(value, out);
}

absl::Status ReadContributionChunk(ChunkShape shape, uint32_t k, absl::string_view* bytes,
                                   Components* components) {
  const size_t needed = ContributionChunkBytes(shape, k);
  if (bytes->size() < needed) return Truncated(shape, needed, bytes->size());
  const absl::string_view own = bytes->substr(0, needed);
  const uint32_t elements = shape.elements();
  if (ContributionIsDense(elements, k)) {
    ISTHMUS_RETURN_IF_ERROR(ReadValues(shape, own, elements, &components->value));
    FillAllIndices(elements, &components->index);
    if (k < elements) DropPositiveZeros(components);
    if (components->size() != k) {
      return absl::InvalidArgumentError(absl::StrCat(
          "dense ", Name(shape), " holds ", components->size(), " components; it must have ", k));
    }
  } else {
    ISTHMUS_RETURN_IF_ERROR(ReadIndices(shape, /*first_bit=*/0, k, own, &components->index));
    const absl::string_view values = own.substr(needed - k * kFloatBytes);
    ISTHMUS_RETURN_IF_ERROR(ReadValues(shape, values, k, &components->value));
  }
  bytes->remove_prefix(needed);
  return absl::OkStatus();
}

size_t MergedChunkBytes(ChunkShape shape, uint32_t count) {
  CheckShape(shape);
  const uint32_t elements = shape.elements();
  ISTHMUS_CHECK(count <= elements);
  const uint32_t count_bits = IndexBits(elements + 1);
  return MergedIsDense(elements, count) ? BytesOfBits(count_bits) + DenseBytes(elements)
                                        : SparseBytes(elements, count, count_bits);
}

void AppendMergedChunk(ChunkShape shape, const Components& components, std::vector<char>* out) {
  CheckShape(shape);
  const uint32_t elements = shape.elements();
  const uint32_t count = static_cast<uint32_t>(components.size());
  ISTHMUS_CHECK(components.index.size() == components.value.size());
  ISTHMUS_CHECK(count <= elements);
  const bool dense = MergedIsDense(elements, count);
  BitWriter writer(out);
  writer.Write(dense ? elements : count, IndexBits(elements + 1));
  if (!dense) AppendIndices(shape, components, &writer);
  writer.Pad();
  if (dense) return AppendDense(shape, components, out);
  for (const float value : components.value) AppendFloat(value, out);
}

absl::Status ReadMergedChunk(ChunkShape shape, absl::string_view* bytes, Components* components) {
  CheckShape(shape);
  const uint32_t elements = shape.elements();
  const uint32_t count_bits = IndexBits(elements + 1);
  const size_t count_bytes = BytesOfBits(count_bits);
  if (bytes->size() < count_bytes) return Truncated(shape, count_bytes, bytes->size());
  BitReader reader(*bytes);
  const uint32_t count = reader.Read(count_bits);
  if (count > elements) {
    return absl::InvalidArgumentError(absl::StrCat(Name(shape), " says it holds ", count,
                                                   " components; the limit is ", elements));
  }
  if (count < elements && MergedIsDense(elements, count)) {
    return absl::InvalidArgumentError(absl::StrCat(
        Name(shape), " holds ", count, " components with indices, which is not smaller than all ",
        elements, " values; it must be dense"));
  }
  const size_t needed = MergedChunkBytes(shape, count);
  if (bytes->size() < needed) return Truncated(shape, needed, bytes->size());
  const bool all = count == elements;
  ISTHMUS_RETURN_IF_ERROR(ReadIndices(shape, count_bits, all ? 0 : count, bytes->substr(0, needed),
                                      &components->index));
  if (all) FillAllIndices(elements, &components->index);
  const absl::string_view values = bytes->substr(needed - count * kFloatBytes, count * kFloatBytes);
  ISTHMUS_RETURN_IF_ERROR(ReadValues(shape, values, count, &components->value));
  bytes->remove_prefix(needed);
  return absl::OkStatus();
}

}  // namespace isthmus
