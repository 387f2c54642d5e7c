// Settings, lengths, and the sentence about bytes that cannot be read.
#include "kernels/number_format.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernels/number_bytes.h"

namespace isthmus {
namespace {

// A sentence about a part of a block.
template <class... Words>
absl::Status Wrong(const NumberSettings& settings, const Words&... words) {
  return absl::InvalidArgumentError(absl::StrCat(NumberName(settings.format), " ", words...));
}

absl::Status WrongValue(const NumberSettings& settings, size_t at, float value) {
  return Wrong(settings, "value ", at, " is ", value, "; magnitudes up to ", kNumberMax,
               " are taken");
}

absl::Status WrongGroup(const NumberSettings& settings, const NumberGroup& group) {
  const float scale = ScaleAt(group.bytes);
  const int32_t qmax = CodeMax(settings.format);
  if (!ScaleIsRight(scale, qmax)) {
    return Wrong(settings, "group at value ", group.first, " has the scale ", scale,
                 "; scales from 0 to ", kNumberMax / static_cast<float>(qmax), " are taken");
  }
  for (size_t i = 0; i < group.count; ++i) {
    const int32_t code = CodeAt(settings.format, group.bytes + kScaleBytes, i);
    if (code < -qmax) {
      return Wrong(settings, "value ", group.first + i, " has the code ", code, "; codes from ",
                   -qmax, " to ", qmax, " are taken");
    }
    if (scale == 0.0f && code != 0) {
      return Wrong(settings, "value ", group.first + i, " has the code ", code,
                   " in a group with the scale 0; all its codes must be 0");
    }
  }
  return absl::OkStatus();
}

// The first thing that keeps a block of full length from being read.
absl::Status WhatIsWrong(const NumberSettings& settings, const char* bytes, size_t count) {
  switch (settings.format) {
    case NumberFormat::kF32:
    case NumberFormat::kBf16:
    case NumberFormat::kF16:
      for (size_t i = 0; i < count; ++i) {
        const float value = FloatAt(settings.format, bytes, i);
        if (!(std::fabs(value) <= kNumberMax)) return WrongValue(settings, i, value);
      }
      break;
    case NumberFormat::kInt8:
    case NumberFormat::kInt4:
      for (size_t first = 0; first < count; first += settings.group) {
        const NumberGroup group = GroupAt(settings, bytes, first, count);
        const absl::Status status = WrongGroup(settings, group);
        if (!status.ok()) return status;
      }
      break;
    case NumberFormat::kSign1:
      break;
    case NumberFormat::kTernary:
      for (size_t i = 0; i < count; ++i) {
        if (CodeAt(settings.format, bytes, i) == -2) {
          return Wrong(settings, "value ", i, " has the code 2; codes 0, 1 and 3 are taken");
        }
      }
      break;
  }
  return Wrong(settings, "block of ", count, " values has padding bits that are not 0");
}

absl::Status CheckHadamard(const NumberSettings& settings, bool has_groups) {
  const uint32_t n = settings.hadamard;
  if (n == 0) return absl::OkStatus();
  if (n < 2 || n > kHadamardMax || (n & (n - 1)) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "codec.hadamard is ", n, "; it must be 0 or a power of two from 2 to ", kHadamardMax));
  }
  if (has_groups && settings.group % n != 0) {
    return absl::InvalidArgumentError(absl::StrCat("codec.hadamard is ", n,
                                                   ", which does not divide the group of ",
                                                   settings.group, " values; make it do so"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::string_view NumberName(NumberFormat format) {
  switch (format) {
    case NumberFormat::kF32:
      return "f32";
    case NumberFormat::kBf16:
      return "bf16";
    case NumberFormat::kF16:
      return "f16";
    case NumberFormat::kInt8:
      return "int8";
    case NumberFormat::kInt4:
      return "int4";
    case NumberFormat::kSign1:
      return "sign1";
    case NumberFormat::kTernary:
      return "ternary";
  }
  return "unknown";
}

absl::Status CheckNumberSettings(const NumberSettings& settings) {
  if (NumberName(settings.format) == "unknown") {
    return absl::InvalidArgumentError(absl::StrCat(
        "codec.format is ", static_cast<int>(settings.format), "; there is no such format"));
  }
  const bool has_groups =
      settings.format == NumberFormat::kInt8 || settings.format == NumberFormat::kInt4;
  if (has_groups && (settings.group < 1 || settings.group > kNumberGroupMax)) {
    return absl::InvalidArgumentError(absl::StrCat("codec.group is ", settings.group,
                                                   "; it must be at least 1 and at most ",
                                                   kNumberGroupMax));
  }
  return CheckHadamard(settings, has_groups);
}

absl::Status CheckAggregateFormat(AggregateKind kind, NumberFormat format) {
  const bool votes = format == NumberFormat::kSign1 || format == NumberFormat::kTernary;
  if (kind != AggregateKind::kMajority || votes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("aggregate majority counts votes, and codec.format ", NumberName(format),
                   " sends other numbers; take sign1 or ternary, or the aggregate sign_of_mean"));
}

float FloatAt(NumberFormat format, const char* bytes, size_t i) {
  if (format == NumberFormat::kF32) {
    float value;
    std::memcpy(&value, bytes + 4 * i, sizeof(value));
    return value;
  }
  uint16_t half;
  std::memcpy(&half, bytes + 2 * i, sizeof(half));
  // Bits behind the point, and the exponent of what the fraction's last bit counts for.
  const int fraction = format == NumberFormat::kBf16 ? 7 : 10;
  const int least = format == NumberFormat::kBf16 ? -133 : -24;
  const int field = (half & 0x7fff) >> fraction;
  int steps = half & ((1 << fraction) - 1);
  float size = HUGE_VALF;
  if (field != 0x7fff >> fraction) {
    if (field > 0) steps += 1 << fraction;
    size = std::ldexp(static_cast<float>(steps), std::max(field, 1) - 1 + least);
  }
  return (half & 0x8000) != 0 ? -size : size;
}

size_t CodedCount(const NumberSettings& settings, size_t count) {
  if (settings.hadamard == 0) return count;
  return (count + settings.hadamard - 1) / settings.hadamard * settings.hadamard;
}

size_t NumberBytes(const NumberSettings& settings, size_t count) {
  const size_t coded = CodedCount(settings, count);
  switch (settings.format) {
    case NumberFormat::kF32:
      return coded * 4;
    case NumberFormat::kBf16:
    case NumberFormat::kF16:
      return coded * 2;
    case NumberFormat::kInt8:
    case NumberFormat::kInt4: {
      const size_t whole = coded / settings.group, rest = coded % settings.group;
      return whole * GroupBytes(settings, settings.group) +
             (rest == 0 ? 0 : GroupBytes(settings, rest));
    }
    case NumberFormat::kSign1:
      return (coded + 7) / 8;
    case NumberFormat::kTernary:
      return (coded + 3) / 4;
  }
  return 0;
}

absl::Status ReadNumbers(const NumberSettings& settings, absl::string_view* bytes,
                         absl::Span<float> values) {
  if (values.empty()) return absl::OkStatus();
  const size_t needed = NumberBytes(settings, values.size());
  const size_t coded = CodedCount(settings, values.size());
  if (bytes->size() < needed) {
    return Wrong(settings, "block of ", values.size(), " values is truncated: it takes ", needed,
                 " bytes and ", bytes->size(), " are left");
  }
  if (coded == values.size()) {
    if (!DecodeNumbers(settings, bytes->data(), values)) {
      return WhatIsWrong(settings, bytes->data(), coded);
    }
    if (settings.hadamard != 0) HadamardInPlace(settings.hadamard, values);
  } else {
    std::vector<float> padded(coded);
    if (!DecodeNumbers(settings, bytes->data(), absl::MakeSpan(padded))) {
      return WhatIsWrong(settings, bytes->data(), coded);
    }
    HadamardInPlace(settings.hadamard, absl::MakeSpan(padded));
    std::memcpy(values.data(), padded.data(), values.size() * sizeof(float));
  }
  bytes->remove_prefix(needed);
  return absl::OkStatus();
}

void AppendNumbers(const NumberSettings& settings, absl::Span<const float> values,
                   absl::Span<const float> draws, std::vector<char>* out) {
  ISTHMUS_CHECK(draws.empty() || draws.size() == CodedCount(settings, values.size()));
  if (values.empty()) return;
  const size_t before = out->size();
  out->resize(before + NumberBytes(settings, values.size()));
  if (settings.hadamard == 0) return EncodeNumbers(settings, values, draws, out->data() + before);
  std::vector<float> rotated(CodedCount(settings, values.size()));
  std::copy(values.begin(), values.end(), rotated.begin());
  HadamardInPlace(settings.hadamard, absl::MakeSpan(rotated));
  EncodeNumbers(settings, rotated, draws, out->data() + before);
}

}  // namespace isthmus
