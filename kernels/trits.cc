#include "kernels/trits.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "kernels/number_format.h"

namespace isthmus {
namespace {

constexpr uint32_t kProbabilityBits = 12;
constexpr uint32_t kHalf = uint32_t{1} << (kProbabilityBits - 1);
constexpr uint32_t kMoveBits = 5;
// Below this the range is made larger by a byte.
constexpr uint32_t kRangeMin = uint32_t{1} << 24;
constexpr size_t kWordBytes = 2;
constexpr NumberSettings kPlain = {NumberFormat::kTernary, 1, 0};

// The probability, in 4096ths, that a decision is 0.
class Odds {
 public:
  uint32_t of(uint32_t range) const { return (range >> kProbabilityBits) * zero_; }
  void Learn(bool one) {
    if (one) {
      zero_ -= zero_ >> kMoveBits;
    } else {
      zero_ += ((uint32_t{1} << kProbabilityBits) - zero_) >> kMoveBits;
    }
  }

 private:
  uint32_t zero_ = kHalf;
};

// What is known of a chunk so far.
struct Model {
  Odds is_not_zero[3], is_minus;
  uint32_t before = 0, before_that = 0;  // whether the last two values were not 0

  Odds* NotZero() { return &is_not_zero[before + before_that]; }
  void Past(bool not_zero) {
    before_that = before;
    before = not_zero ? 1 : 0;
  }
};

class Encoder {
 public:
  explicit Encoder(std::vector<char>* out) : out_(out) {}

  void Put(bool one, Odds* odds) {
    const uint32_t zero = odds->of(range_);
    if (one) {
      low_ += zero;
      range_ -= zero;
    } else {
      range_ = zero;
    }
    odds->Learn(one);
    while (range_ < kRangeMin) {
      range_ <<= 8;
      Shift();
    }
  }

  // The fewest bytes that tell the last interval from all others.
  void Finish() {
    // A number inside [low, low + range) with as many zero bits as there are.
    const uint64_t end = low_ + range_ - 1;
    uint64_t mask = 0xffffffff;
    while ((end & ~mask) < low_) mask >>= 8;
    low_ = end & ~mask;
    for (int i = 0; i < 5; ++i) Shift();
    while (out_->size() > begin_ && out_->back() == 0) out_->pop_back();
  }

 private:
  // The highest byte of low_ leaves; a carry goes into those that wait.
  void Shift() {
    if (low_ < 0xff000000u || low_ > 0xffffffffu) {
      const auto carry = static_cast<uint8_t>(low_ >> 32);
      if (has_held_) out_->push_back(static_cast<char>(held_ + carry));
      for (; waiting_ > 0; --waiting_) out_->push_back(static_cast<char>(0xff + carry));
      held_ = static_cast<uint8_t>(low_ >> 24);
      has_held_ = true;
    } else {
      ++waiting_;
    }
    low_ = (low_ << 8) & 0xffffffffu;
  }

  std::vector<char>* const out_;
  const size_t begin_ = out_->size();
  uint64_t low_ = 0;
  uint32_t range_ = 0xffffffff;
  uint8_t held_ = 0;  // written when it is known whether a carry comes
  bool has_held_ = false;
  uint64_t waiting_ = 0;  // bytes 0xff behind it
};

class Decoder {
 public:
  explicit Decoder(absl::string_view bytes) : bytes_(bytes) {
    for (int i = 0; i < 4; ++i) code_ = (code_ << 8) | Next();
  }

  bool Get(Odds* odds) {
    const uint32_t zero = odds->of(range_);
    const bool one = code_ >= zero;
    if (one) {
      code_ -= zero;
      range_ -= zero;
    } else {
      range_ = zero;
    }
    odds->Learn(one);
    while (range_ < kRangeMin) {
      range_ <<= 8;
      code_ = (code_ << 8) | Next();
    }
    return one;
  }

  // Whether no byte is left that was not asked for. Those behind the end are zeros.
  bool at_end() const { return at_ >= bytes_.size(); }

 private:
  uint32_t Next() {
    const size_t i = at_++;
    return i < bytes_.size() ? static_cast<unsigned char>(bytes_[i]) : 0;
  }

  const absl::string_view bytes_;
  size_t at_ = 0;
  uint32_t code_ = 0;
  uint32_t range_ = 0xffffffff;
};

}  // namespace

void AppendTrits(absl::Span<const float> values, std::vector<char>* out) {
  ISTHMUS_CHECK(values.size() <= kTritsMax);
  const size_t begin = out->size();
  const size_t plain = NumberBytes(kPlain, values.size());
  out->resize(begin + kWordBytes);
  Encoder encoder(out);
  Model model;
  for (const float value : values) {
    const bool not_zero = value != 0;
    encoder.Put(not_zero, model.NotZero());
    if (not_zero) encoder.Put(value < 0, &model.is_minus);
    model.Past(not_zero);
  }
  encoder.Finish();
  size_t coded = out->size() - begin - kWordBytes;
  if (coded == 0 || coded >= plain) {  // a word of 0 means the plain form, so nothing is no body
    out->resize(begin + kWordBytes);
    AppendNumbers(kPlain, values, {}, out);
    coded = 0;
  }
  (*out)[begin] = static_cast<char>(coded & 0xff);
  (*out)[begin + 1] = static_cast<char>(coded >> 8);
}

absl::Status ReadTrits(absl::string_view* bytes, absl::Span<float> values) {
  absl::string_view rest = *bytes;
  if (rest.size() < kWordBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("coded signs have ", rest.size(), " bytes; they begin with a length of 2"));
  }
  const size_t coded = static_cast<unsigned char>(rest[0]) |
                       (static_cast<size_t>(static_cast<unsigned char>(rest[1])) << 8);
  rest.remove_prefix(kWordBytes);
  if (coded == 0) {
    const absl::Status read = ReadNumbers(kPlain, &rest, values);
    if (read.ok()) *bytes = rest;
    return read;
  }
  if (rest.size() < coded) {
    return absl::InvalidArgumentError(
        absl::StrCat("coded signs say ", coded, " bytes, and ", rest.size(), " are there"));
  }
  Decoder decoder(rest.substr(0, coded));
  Model model;
  for (float& value : values) {
    const bool not_zero = decoder.Get(model.NotZero());
    value = !not_zero ? 0.0f : decoder.Get(&model.is_minus) ? -1.0f : 1.0f;
    model.Past(not_zero);
  }
  if (!decoder.at_end()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "coded signs have ", coded, " bytes, more than their ", values.size(), " values take"));
  }
  rest.remove_prefix(coded);
  *bytes = rest;
  return absl::OkStatus();
}

}  // namespace isthmus
