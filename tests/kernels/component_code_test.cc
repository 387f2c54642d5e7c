// Chunks of components on the wire: bytes as the header states them, what comes back, what is
// refused.
#include "kernels/component_code.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "kernels/bit_stream.h"
#include "kernels/demo.h"
#include "kernels/index_code.h"
#include "tests/kernels/random.h"

namespace isthmus {
namespace {

constexpr NumberFormat kFormats[] = {NumberFormat::kF32,  NumberFormat::kBf16,
                                     NumberFormat::kF16,  NumberFormat::kInt8,
                                     NumberFormat::kInt4, NumberFormat::kSign1};
constexpr uint32_t kSizes[] = {1, 2, 3, 7, 33, 64, 65, 120, 920, 4096, 16384};

std::string Coded(uint32_t m, NumberFormat format, const Components& components) {
  std::vector<char> out = {'x'};
  const auto k = static_cast<uint32_t>(components.size());
  AppendComponentChunk(m, k, format, components, &out);
  EXPECT_LE(out.size() - 1, ComponentChunkBytesMax(m, k, format)) << m << " " << k;
  EXPECT_GE(out.size() - 1, ComponentChunkBytesMin(m, k, format)) << m << " " << k;
  return std::string(out.begin() + 1, out.end());
}

absl::StatusOr<Components> Read(uint32_t m, uint32_t k, NumberFormat format,
                                absl::string_view* bytes) {
  Components components;
  const absl::string_view before = *bytes;
  const absl::Status status = ReadComponentChunk(m, k, format, bytes, &components);
  if (!status.ok()) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(*bytes == before);
    return status;
  }
  return components;
}

// Bits of floats, so that zeros of two signs differ.
std::vector<uint32_t> BitsOf(const std::vector<float>& values) {
  std::vector<uint32_t> bits(values.size());
  if (!values.empty()) std::memcpy(bits.data(), values.data(), values.size() * 4);
  return bits;
}

// Components none of which is 0.
Components SomeOf(TestRandom* random, uint32_t m, uint32_t k) {
  Components components = random->Some(m, k);
  for (float& value : components.value) value = value == 0.0f ? 1.0f : value;
  return components;
}

// Bit by bit.
class PlainWriter {
 public:
  void Put(uint64_t value, uint32_t count) {
    for (uint32_t i = 0; i < count; ++i, ++bit_) {
      if (bit_ % 8 == 0) bytes_.push_back('\0');
      if ((value >> i) & 1) bytes_.back() = static_cast<char>(bytes_.back() | (1 << (bit_ % 8)));
    }
  }
  void PutIndices(uint32_t m, const std::vector<uint32_t>& index) {
    const IndexCode code(m, static_cast<uint32_t>(index.size()));
    std::vector<char> room(IndexCodeBitsMax(code) / 8 + 9);
    BitWriter64 writer(room.data());
    isthmus::PutIndices(code, index, &writer);
    writer.Pad();
    BitReader64 reader({room.data(), room.size()});
    std::vector<uint32_t> read(index.size());
    EXPECT_TRUE(GetIndices(code, &reader, absl::MakeSpan(read)));
    for (size_t i = 0; i < reader.bit(); ++i) Put((room[i / 8] >> (i % 8)) & 1, 1);
  }
  void Pad() { bit_ = bytes_.size() * 8; }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
  size_t bit_ = 0;
};

std::string Plain(uint32_t m, NumberFormat format, const Components& components) {
  PlainWriter writer;
  if (format == NumberFormat::kSign1) {
    writer.Put(0, 1);
    writer.PutIndices(m, components.index);
    for (const float value : components.value) writer.Put(value < 0, 1);
    return writer.bytes();
  }
  writer.PutIndices(m, components.index);
  if (format != NumberFormat::kInt4) writer.Pad();
  if (format == NumberFormat::kF32) {
    for (const uint32_t bits : BitsOf(components.value)) writer.Put(bits, 32);
    return writer.bytes();
  }
  if (format == NumberFormat::kBf16 || format == NumberFormat::kF16) {
    NumberSettings settings;
    settings.format = format;
    std::vector<char> halves;
    AppendNumbers(settings, components.value, {}, &halves);
    return writer.bytes() + std::string(halves.begin(), halves.end());
  }
  const bool wide = format == NumberFormat::kInt8;
  const float qmax = wide ? 127 : 7;
  float largest = 0;
  for (const float value : components.value) largest = std::max(largest, std::fabs(value));
  uint32_t q = 0;
  while (q < 255 && qmax * StepOf(q) < largest) ++q;
  if (largest < StepOf(1) / 2) q = 0;
  writer.Put(q, 8);
  for (const float value : components.value) {
    // In float32, as the header says: near the middle of two codes it decides.
    float code = q == 0 ? 0 : std::nearbyint(value * (1.0f / StepOf(q)));
    code = std::min(std::max(code, -qmax), qmax);
    writer.Put(static_cast<uint64_t>(static_cast<int64_t>(code)), wide ? 8 : 4);
  }
  return writer.bytes();
}

TEST(ComponentCode, StepsAreAQuarterOctaveApart) {
  EXPECT_EQ(StepOf(0), 0.0f);
  for (uint32_t q = 1; q < 256; ++q) {
    EXPECT_NEAR(StepOf(q) / std::exp2(q / 4.0 - 48), 1, 1e-7) << q;
  }
}

TEST(ComponentCode, BytesAreThoseThatAreStated) {
  TestRandom random;
  for (const NumberFormat format : kFormats) {
    for (const uint32_t m : kSizes) {
      for (int round = 0; round < 12; ++round) {
        const uint32_t k = round < 4 ? std::min<uint32_t>(round, m) : random.Between(0, m);
        Components components = SomeOf(&random, m, k);
        for (float& value : components.value) value *= std::ldexp(1.0f, round - 6);
        if (k == 0) {
          EXPECT_EQ(Coded(m, format, components), "");
          continue;
        }
        ASSERT_EQ(Coded(m, format, components), Plain(m, format, components))
            << NumberName(format) << " " << m << " " << k;
      }
    }
  }
}

// What is read is what the sender says others read; sent again it is the same.
TEST(ComponentCode, RoundedValuesComeBackBitByBit) {
  TestRandom random;
  for (const NumberFormat format : kFormats) {
    for (const uint32_t m : kSizes) {
      for (int round = 0; round < 30; ++round) {
        Components components = SomeOf(&random, m, random.Between(1, m));
        const float size = std::ldexp(1.0f, static_cast<int>(random.Between(0, 140)) - 70);
        for (float& value : components.value) {
          value *= size;
          if (round % 5 == 0)
            value *= std::ldexp(1.0f, static_cast<int>(random.Between(0, 40)) - 20);
        }
        const std::string sent = Coded(m, format, components) + "behind";
        Components rounded = components;
        RoundValues(format, absl::MakeSpan(rounded.value));
        if (format == NumberFormat::kSign1) {
          ASSERT_EQ(BitsOf(rounded.value), BitsOf(components.value));
          for (float& value : rounded.value) value = value < 0 ? -1.0f : 1.0f;
        }
        absl::string_view bytes = sent;
        const auto read = Read(m, static_cast<uint32_t>(components.size()), format, &bytes);
        ASSERT_TRUE(read.ok()) << read.status();
        ASSERT_EQ(bytes, "behind");
        ASSERT_EQ(read->index, components.index);
        ASSERT_EQ(BitsOf(read->value), BitsOf(rounded.value)) << NumberName(format) << " " << m;
        ASSERT_EQ(Coded(m, format, *read) + "behind", sent)
            << NumberName(format) << " " << m << " " << read->size();
      }
    }
  }
}

TEST(ComponentCode, ScalesCoverTheLargestValue) {
  TestRandom random;
  for (int round = 0; round < 3000; ++round) {
    const float value = std::ldexp(1.0f + random.Between(0, 1000) / 1000.0f,
                                   static_cast<int>(random.Between(0, 50)) - 38);
    float values[] = {value, -value / 3};
    RoundValues(NumberFormat::kInt4, absl::MakeSpan(values));
    EXPECT_NEAR(values[0] / value, 1, 1.0 / 11) << value;  // half a step, of 6 or 7
    values[0] = value;
    RoundValues(NumberFormat::kInt8, absl::MakeSpan(values, 1));
    EXPECT_NEAR(values[0] / value, 1, 1.0 / 213) << value;
  }
  float beyond[] = {1e20f, -1e-30f};
  RoundValues(NumberFormat::kInt4, absl::MakeSpan(beyond));
  EXPECT_EQ(beyond[0], 7 * StepOf(255));
  EXPECT_EQ(beyond[1], 0.0f);
}

TEST(ComponentCode, SignsOfZerosAreNotSent) {
  TestRandom random;
  for (const uint32_t m : kSizes) {
    for (int round = 0; round < 20; ++round) {
      Components components = random.Some(m, random.Between(1, m)), signs;
      for (float& value : components.value) {
        if (round == 0 || random.Between(0, 2) == 0) value = random.Between(0, 1) ? 0.0f : -0.0f;
      }
      for (size_t i = 0; i < components.size(); ++i) {
        if (components.value[i] == 0) continue;
        signs.index.push_back(components.index[i]);
        signs.value.push_back(components.value[i] < 0 ? -1.0f : 1.0f);
      }
      const std::string sent = Coded(m, NumberFormat::kSign1, components);
      absl::string_view bytes = sent;
      const auto read =
          Read(m, static_cast<uint32_t>(components.size()), NumberFormat::kSign1, &bytes);
      ASSERT_TRUE(read.ok()) << read.status();
      ASSERT_EQ(read->index, signs.index);
      ASSERT_EQ(read->value, signs.value);
      ASSERT_TRUE(bytes.empty());
    }
  }
}

TEST(ComponentCode, NeverMoreThanDenseFloats) {
  for (const NumberFormat format : kFormats) {
    for (uint32_t m = 1; m <= 4096; m = m < 70 ? m + 1 : m * 2 - 1) {
      for (uint32_t k = 1; k <= m; ++k) {
        ASSERT_LE(ComponentChunkBytesMax(m, k, format), 4 * m) << NumberName(format) << m << k;
      }
    }
  }
}

// Any bytes are read in bounds or refused; what is read of sparse data coded again gives the bytes.
TEST(ComponentCode, AnyBytesAreReadOrRefused) {
  TestRandom random;
  int taken = 0, refused = 0;
  for (int round = 0; round < 30000; ++round) {
    const NumberFormat format = kFormats[random.Between(0, 5)];
    const uint32_t m = random.Between(1, round % 2 == 0 ? 64 : 4096);
    const uint32_t k = random.Between(1, std::min<uint32_t>(m, 40));
    std::string bytes;
    if (round % 3 == 0) {
      bytes = Coded(m, format, random.Some(m, k));
      for (uint32_t flips = random.Between(1, 3); flips > 0; --flips) {
        char& byte = bytes[random.Between(0, static_cast<uint32_t>(bytes.size() - 1))];
        byte = static_cast<char>(byte ^ (1 << random.Between(0, 7)));
      }
    } else {
      bytes.resize(random.Between(0, 60));
      for (char& byte : bytes) byte = static_cast<char>(random.Between(0, 255));
    }
    absl::string_view rest = bytes;
    const auto read = Read(m, k, format, &rest);
    ++(read.ok() ? taken : refused);
    if (!read.ok()) continue;
    ASSERT_LE(read->size(), k);
    for (size_t i = 0; i < read->size(); ++i) {
      ASSERT_LT(read->index[i], m);
      ASSERT_TRUE(i == 0 || read->index[i - 1] < read->index[i]);
      ASSERT_TRUE(std::isfinite(read->value[i]));
    }
  }
  EXPECT_GT(taken, 1000);
  EXPECT_GT(refused, 1000);
}

TEST(ComponentCode, TruncatedChunksAreRefused) {
  TestRandom random;
  for (const NumberFormat format : kFormats) {
    for (const uint32_t m : kSizes) {
      const Components components = random.Some(m, random.Between(1, m));
      const std::string bytes = Coded(m, format, components);
      for (size_t size = bytes.size() > 300 ? bytes.size() - 9 : 0; size < bytes.size(); ++size) {
        absl::string_view cut = absl::string_view(bytes).substr(0, size);
        EXPECT_FALSE(Read(m, static_cast<uint32_t>(components.size()), format, &cut).ok())
            << NumberName(format) << " " << m << " " << size << " of " << bytes.size();
      }
    }
  }
}

TEST(ComponentCode, WrongValuesAndPaddingAreRefused) {
  const Components one = {{5}, {-1.5f}};
  const auto refuses = [](NumberFormat format, std::string bytes, absl::string_view why) {
    absl::string_view view = bytes;
    const auto read = Read(64, 1, format, &view);
    ASSERT_FALSE(read.ok()) << why;
    EXPECT_TRUE(absl::StrContains(read.status().message(), why)) << read.status();
  };
  std::string bytes = Coded(64, NumberFormat::kF32, one);
  ASSERT_EQ(bytes.size(), 5u);  // six bits
  bytes[0] = static_cast<char>(bytes[0] | 0x40);
  refuses(NumberFormat::kF32, bytes, "padding");
  refuses(NumberFormat::kF32, std::string("\x05\x00\x00\x80\x7f", 5), "finite");
  refuses(NumberFormat::kInt8, std::string("\x05\x30\x80", 3), "code beyond");
  refuses(NumberFormat::kInt8, std::string("\x05\x00\x01", 3), "code beyond");
  // Six bits of index, eight of scale, four of code: 18.
  refuses(NumberFormat::kInt4, std::string("\x05\x2c\x02", 3), "code beyond");
  refuses(NumberFormat::kInt4, std::string("\x05\x2c\x04", 3), "padding");
  refuses(NumberFormat::kSign1, std::string("\x0b\x01", 2), "");
}

TEST(ComponentCode, MergedChunksComeBack) {
  TestRandom random;
  for (const uint32_t m : kSizes) {
    for (int round = 0; round < 20; ++round) {
      const uint32_t count = round < 3 ? std::min<uint32_t>(m, round) : random.Between(0, m);
      const Components components = random.Some(m, round == 3 ? m : count);
      std::vector<char> out;
      AppendMergedComponents(m, components, &out);
      EXPECT_LE(out.size(), 2 + 4 * m);
      for (size_t size = 0; size < out.size(); size += 1 + size / 8) {
        absl::string_view cut(out.data(), size);
        Components read;
        EXPECT_FALSE(ReadMergedComponents(m, &cut, &read).ok());
      }
      absl::string_view bytes(out.data(), out.size());
      Components read;
      ASSERT_TRUE(ReadMergedComponents(m, &bytes, &read).ok());
      ASSERT_TRUE(bytes.empty());
      ASSERT_EQ(read.index, components.index);
      ASSERT_EQ(read.value, components.value);

      std::vector<char> dense;
      AppendMergedDense(m, components, &dense);
      ASSERT_EQ(dense.size(), 4 * m);
      bytes = {dense.data(), dense.size()};
      ASSERT_TRUE(ReadMergedDense(m, &bytes, &read).ok());
      ASSERT_EQ(read.size(), m);
      AppendMergedComponents(m, read, &out);
      bytes = {out.data() + out.size() - 4 * m, 4 * m};
      ASSERT_EQ(bytes, absl::string_view(dense.data(), dense.size()));
      for (size_t i = 0; i < components.size(); ++i) {
        ASSERT_EQ(read.value[components.index[i]], components.value[i]);
      }
    }
  }
}

TEST(ComponentCode, VotesComeBackAsTheMergeMadeThem) {
  TestRandom random;
  for (const uint32_t nodes : {1u, 2u, 3u, 5u, 16u, 255u, 256u}) {
    for (const uint32_t m : {1u, 3u, 64u, 920u}) {
      std::vector<Components> sent(nodes);
      std::vector<const Components*> senders;
      for (Components& one : sent) {
        one = random.Some(m, random.Between(0, m));
        for (float& value : one.value) value = value < 0 ? -1.0f : 1.0f;
        senders.push_back(&one);
      }
      Components merged, read;
      MergeBySenders(senders, m, &merged);
      std::vector<char> out;
      AppendMergedVotes(m, merged, &out);
      absl::string_view bytes(out.data(), out.size());
      ASSERT_TRUE(ReadMergedVotes(m, &bytes, &read).ok());
      ASSERT_TRUE(bytes.empty());
      ASSERT_EQ(read.index, merged.index);
      ASSERT_EQ(BitsOf(read.value), BitsOf(merged.value));
      if (out.size() > 1) {
        bytes = {out.data(), out.size() - 1};
        EXPECT_FALSE(ReadMergedVotes(m, &bytes, &read).ok());
      }
    }
  }
}

TEST(ComponentCode, AnyMergedBytesAreReadOrRefused) {
  TestRandom random;
  int refused = 0;
  for (int round = 0; round < 30000; ++round) {
    const uint32_t m = random.Between(1, round % 2 == 0 ? 64 : 4096);
    std::string bytes(random.Between(0, 60), '\0');
    for (char& byte : bytes) byte = static_cast<char>(random.Between(0, 255));
    if (bytes.size() > 1) bytes[1] = 0;  // few components
    absl::string_view rest = bytes;
    Components read;
    const absl::Status status =
        round % 4 < 2 ? ReadMergedVotes(m, &rest, &read) : ReadMergedComponents(m, &rest, &read);
    if (!status.ok()) {
      ++refused;
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_EQ(rest.size(), bytes.size());
      continue;
    }
    for (size_t i = 0; i < read.size(); ++i) {
      ASSERT_LT(read.index[i], m);
      ASSERT_TRUE(i == 0 || read.index[i - 1] < read.index[i]);
      ASSERT_TRUE(std::isfinite(read.value[i]));
      ASSERT_TRUE(round % 4 >= 2 || std::fabs(read.value[i]) <= 1.0f);
    }
  }
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace isthmus
