#include "spec/piece.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <random>

#include "base/limits.h"
#include "base/sha256.h"
#include "kernels/component_code.h"
#include "kernels/demo.h"
#include "spec/run_spec.h"
#include "spec/stages.h"
#include "tests/spec/forgery.h"
#include "tests/spec/piece_fixture.h"

namespace isthmus {
namespace {

using ::testing::HasSubstr;

// A grid of flat chunks whose contributions have this format and whose updates have that one.
Grid FlatGrid(v1::NumberFormat contributions, v1::NumberFormat updates) {
  v1::Manifest manifest;
  for (const std::vector<uint64_t>& shape :
       {std::vector<uint64_t>{130, 97}, {1}, {5000}, {3, 5000}, {}}) {
    v1::TensorSpec* tensor = manifest.add_tensors();
    tensor->set_name("t" + std::to_string(manifest.tensors_size()));
    tensor->set_dtype(v1::DTYPE_FLOAT32);
    for (uint64_t size : shape) tensor->add_shape(size);
  }
  v1::CodecSpec codec;
  codec.set_kind(v1::CODEC_KIND_NUMBERS);
  codec.mutable_numbers()->set_format(contributions);
  codec.mutable_reply()->set_format(updates);
  FillNumbers(codec.mutable_reply());
  EXPECT_TRUE(CompleteCodecSpec(&codec).ok());
  absl::StatusOr<Grid> grid = Grid::Make(manifest, codec);
  EXPECT_TRUE(grid.ok()) << grid.status();
  return *std::move(grid);
}

TEST(PieceTest, UpdatesOfSignsAreEntropyCoded) {
  const Grid grid = FlatGrid(v1::NUMBER_FORMAT_F32, v1::NUMBER_FORMAT_TERNARY);
  PieceWriter writer(&grid, v1::PAYLOAD_CODEC_REPLY, 300);
  const auto value = [](uint64_t chunk, uint32_t i) {
    return static_cast<float>((chunk + i) % 7 == 0) - static_cast<float>((chunk + i) % 7 == 3);
  };
  for (uint64_t chunk = 0; chunk < grid.chunks(); ++chunk) {
    std::vector<float> values(grid.Place(chunk).shape.elements());
    for (uint32_t i = 0; i < values.size(); ++i) values[i] = value(chunk, i);
    writer.AppendValues(chunk, values);
  }
  const std::vector<std::string> pieces = writer.Finish();
  uint64_t next = 0;
  for (const std::string& bytes : pieces) {
    const auto piece = OpenPiece(grid, bytes);
    ASSERT_TRUE(piece.ok()) << piece.status();
    const auto same = [&](uint64_t chunk, const Components& read) {
      EXPECT_EQ(chunk, next++);
      for (uint32_t i = 0; i < read.value.size(); ++i) EXPECT_EQ(read.value[i], value(chunk, i));
      return absl::OkStatus();
    };
    EXPECT_TRUE(ForEachChunk(grid, *piece, same).ok());
  }
  EXPECT_EQ(next, grid.chunks());
  EXPECT_TRUE(Digest(grid, pieces).ok());
}

// Whole values, which f32, bf16 and sign1 give back as they were, or as signs.
TEST(PieceTest, NumbersRoundTripAtEveryCut) {
  const Grid grid = FlatGrid(v1::NUMBER_FORMAT_SIGN1, v1::NUMBER_FORMAT_BF16);
  std::mt19937 random(3);
  std::vector<std::vector<float>> values;
  for (uint64_t chunk = 0; chunk < grid.chunks(); ++chunk) {
    std::vector<float> chunk_values(grid.Place(chunk).shape.elements());
    for (float& value : chunk_values) value = static_cast<float>(random() % 100) - 50.0f;
    values.push_back(chunk_values);
  }
  for (v1::PayloadCodec layout : {v1::PAYLOAD_CODEC_NUMBERS, v1::PAYLOAD_CODEC_REPLY}) {
    const bool signs = layout == v1::PAYLOAD_CODEC_NUMBERS;
    for (size_t piece_bytes_max : {size_t{1}, size_t{3000}, kPieceBytesMax}) {
      PieceWriter writer(&grid, layout, piece_bytes_max);
      for (uint64_t chunk = 0; chunk < grid.chunks(); ++chunk) {
        writer.AppendValues(chunk, values[chunk]);
      }
      const std::vector<std::string> pieces = writer.Finish();
      uint64_t next = 0;
      for (const std::string& bytes : pieces) {
        const auto piece = OpenPiece(grid, bytes);
        ASSERT_TRUE(piece.ok()) << piece.status();
        Components read;
        for (ChunkReader reader(&grid, *piece); !reader.done(); ++next) {
          const auto coded = reader.Next(&read);
          ASSERT_TRUE(coded.ok()) << coded.status();
          EXPECT_EQ(coded->size(), NumberBytes(LayoutNumbers(grid, layout), values[next].size()));
          EXPECT_TRUE(!signs || coded->size() == grid.ContributionBytes(next).most);
          ASSERT_EQ(read.value.size(), values[next].size());
          for (size_t i = 0; i < read.value.size(); ++i) {
            const float sign = values[next][i] >= 0 ? 1.0f : -1.0f;
            EXPECT_EQ(read.value[i], signs ? sign : values[next][i]);
          }
        }
      }
      EXPECT_EQ(next, grid.chunks());
      EXPECT_TRUE(Digest(grid, pieces).ok());
    }
  }
}

TEST(PieceTest, RoundTripAtEveryCut) {
  for (v1::PayloadCodec codec :
       {v1::PAYLOAD_CODEC_TOPK_F32, v1::PAYLOAD_CODEC_MERGED_F32, v1::PAYLOAD_CODEC_COMPONENTS,
        v1::PAYLOAD_CODEC_MERGED, v1::PAYLOAD_CODEC_MERGED_DENSE}) {
    const bool older = codec < v1::PAYLOAD_CODEC_COMPONENTS;
    const Grid grid = TestGrid(older ? v1::NUMBER_FORMAT_UNSPECIFIED : v1::NUMBER_FORMAT_F32);
    const std::vector<Components> payload = RandomPayload(grid, codec, 7);
    for (size_t piece_bytes_max : {size_t{1}, size_t{300}, size_t{3000}, kPieceBytesMax}) {
      uint64_t next = 0;
      for (const std::string& bytes : Write(grid, codec, payload, piece_bytes_max)) {
        const absl::StatusOr<PieceView> piece = OpenPiece(grid, bytes);
        ASSERT_TRUE(piece.ok()) << piece.status();
        EXPECT_EQ(piece->codec, codec);
        ASSERT_EQ(piece->first_chunk, next);
        EXPECT_TRUE(bytes.size() <= piece_bytes_max || piece->end_chunk == next + 1);
        const absl::Status status =
            ForEachChunk(grid, *piece, [&](uint64_t chunk, const Components& components) {
              EXPECT_EQ(chunk, next++);
              // The dense form gives every position back, zeros included.
              size_t found = 0;
              for (size_t i = 0; i < components.size(); ++i) {
                if (found < payload[chunk].size() &&
                    components.index[i] == payload[chunk].index[found]) {
                  EXPECT_EQ(components.value[i], payload[chunk].value[found++]);
                } else {
                  EXPECT_EQ(components.value[i], 0.0f);
                }
              }
              EXPECT_EQ(found, payload[chunk].size());
              return absl::OkStatus();
            });
        ASSERT_TRUE(status.ok()) << status;
        ASSERT_EQ(piece->end_chunk, next);
      }
      EXPECT_EQ(next, grid.chunks());
    }
  }
}

TEST(PieceTest, ContributionBytesAreWhatTheGridSays) {
  const Grid grid = TestGrid();
  const auto payload = RandomPayload(grid, v1::PAYLOAD_CODEC_TOPK_F32, 1);
  const auto pieces = Write(grid, v1::PAYLOAD_CODEC_TOPK_F32, payload, kPieceBytesMax);
  size_t bytes = kPieceHeaderBytes;
  for (uint64_t chunk = 0; chunk < grid.chunks(); ++chunk) {
    const ByteRange of_chunk = grid.ContributionBytes(chunk);
    EXPECT_EQ(of_chunk.least, of_chunk.most);
    bytes += of_chunk.most;
  }
  ASSERT_EQ(pieces.size(), 1u);
  EXPECT_EQ(pieces[0].size(), bytes);
}

TEST(PieceTest, GapCodedBytesAreWithinWhatTheGridSays) {
  for (const v1::NumberFormat format :
       {v1::NUMBER_FORMAT_F32, v1::NUMBER_FORMAT_BF16, v1::NUMBER_FORMAT_F16,
        v1::NUMBER_FORMAT_INT8, v1::NUMBER_FORMAT_INT4, v1::NUMBER_FORMAT_SIGN1}) {
    const Grid grid = TestGrid(format);
    const auto payload = RandomPayload(grid, v1::PAYLOAD_CODEC_COMPONENTS, 1);
    const auto pieces = Write(grid, v1::PAYLOAD_CODEC_COMPONENTS, payload, kPieceBytesMax);
    ASSERT_EQ(pieces.size(), 1u);
    Components read;
    uint64_t chunk = 0;
    for (ChunkReader reader(&grid, *OpenPiece(grid, pieces[0])); !reader.done(); ++chunk) {
      const auto coded = reader.Next(&read);
      ASSERT_TRUE(coded.ok()) << coded.status();
      EXPECT_GE(coded->size(), grid.ContributionBytes(chunk).least);
      EXPECT_LE(coded->size(), grid.ContributionBytes(chunk).most);
      EXPECT_EQ(read.index, payload[chunk].index);
    }
    EXPECT_TRUE(Digest(grid, pieces).ok());
  }
}

TEST(PieceTest, SignPlanesAreOfStepsThatTakeSigns) {
  const Grid grid = TestGrid(v1::NUMBER_FORMAT_F32);
  PieceWriter writer(&grid, v1::PAYLOAD_CODEC_SIGN_PLANE, kPieceBytesMax);
  for (uint64_t chunk = 0; chunk < grid.chunks(); ++chunk) {
    std::vector<float> values(grid.Place(chunk).shape.elements(), chunk % 2 == 0 ? 2.5f : -1.5f);
    if (chunk % 3 == 0) values[values.size() / 2] = 0.0f;
    writer.AppendValues(chunk, values);
  }
  const auto pieces = writer.Finish();
  Components read;
  uint64_t chunk = 0;
  for (ChunkReader reader(&grid, *OpenPiece(grid, pieces[0])); !reader.done(); ++chunk) {
    ASSERT_TRUE(reader.Next(&read).ok());
    ASSERT_TRUE(read.index.empty());
    for (size_t i = 0; i < read.value.size(); ++i) {
      const bool zero = chunk % 3 == 0 && i == read.value.size() / 2;
      ASSERT_EQ(read.value[i], zero ? 0.0f : chunk % 2 == 0 ? 1.0f : -1.0f);
    }
  }
  Grid other = grid;
  v1::CodecSpec codec = grid.codec();
  codec.set_sign(false);
  ASSERT_TRUE(other.TakeCodec(codec).ok());
  EXPECT_FALSE(OpenPiece(other, pieces[0]).ok());
}

// Of three nodes, whose chunks lie behind each other.
TEST(PieceTest, ContributionsAreMergedByTheirReader) {
  constexpr uint32_t kSenders = 3;
  const Grid grid = TestGrid(v1::NUMBER_FORMAT_F32);
  std::vector<std::vector<Components>> sent;
  for (uint32_t node = 0; node < kSenders; ++node) {
    sent.push_back(RandomPayload(grid, v1::PAYLOAD_CODEC_COMPONENTS, node));
  }
  PieceWriter writer(&grid, v1::PAYLOAD_CODEC_CONTRIBUTIONS, kPieceBytesMax, kSenders);
  for (uint64_t chunk = 0; chunk < grid.chunks(); ++chunk) {
    const ChunkPlace place = grid.Place(chunk);
    std::vector<char> coded;
    for (const std::vector<Components>& own : sent) {
      AppendComponentChunk(place.shape.elements(), place.k, NumberFormat::kF32, own[chunk], &coded);
    }
    writer.AppendCoded(chunk, {coded.data(), coded.size()});
  }
  const auto pieces = writer.Finish();
  ASSERT_EQ(pieces.size(), 1u);
  EXPECT_TRUE(Digest(grid, pieces).ok());
  EXPECT_EQ(OpenPiece(grid, pieces[0])->senders, kSenders);
  Components read, expected;
  for (ChunkReader reader(&grid, *OpenPiece(grid, pieces[0])); !reader.done();) {
    const uint64_t chunk = reader.next_chunk();
    ASSERT_TRUE(reader.Next(&read).ok());
    MergeBySenders({&sent[0][chunk], &sent[1][chunk], &sent[2][chunk]},
                   grid.Place(chunk).shape.elements(), &expected);
    ASSERT_EQ(read.index, expected.index);
    ASSERT_EQ(read.value, expected.value);
  }
  // One more than there are, none, and more than a run may have.
  for (const uint32_t said : {kSenders + 1, 0u, 257u, 0x10000u + kSenders}) {
    std::string other = pieces[0];
    for (int i = 0; i < 3; ++i) other[5 + i] = static_cast<char>(said >> (8 * i));
    Reseal(&other);
    const auto opened = OpenPiece(grid, other);
    if (opened.ok()) {
      EXPECT_EQ(said, kSenders + 1);
      EXPECT_EQ(Digest(grid, {other}).status().code(), absl::StatusCode::kInvalidArgument);
    } else {
      EXPECT_THAT(std::string(opened.status().message()), HasSubstr("it has those of 1 to 256"));
    }
  }
}

TEST(PieceTest, AGapBetweenChunksStartsAPiece) {
  const Grid grid = TestGrid();
  const auto payload = RandomPayload(grid, v1::PAYLOAD_CODEC_MERGED_F32, 1);
  PieceWriter writer(&grid, v1::PAYLOAD_CODEC_MERGED_F32, kPieceBytesMax);
  for (uint64_t chunk : {2, 3, 7}) writer.Append(chunk, payload[chunk]);
  const std::vector<std::string> pieces = writer.Finish();
  ASSERT_EQ(pieces.size(), 2u);
  EXPECT_EQ(OpenPiece(grid, pieces[0])->first_chunk, 2u);
  EXPECT_EQ(OpenPiece(grid, pieces[1])->end_chunk, 8u);
  EXPECT_TRUE(writer.Finish().empty());
}

TEST(PieceTest, EveryDamagedByteIsRefused) {
  const Grid grid = TestGrid();
  const auto payload = RandomPayload(grid, v1::PAYLOAD_CODEC_TOPK_F32, 3);
  const auto pieces = Write(grid, v1::PAYLOAD_CODEC_TOPK_F32, payload, 1000);
  std::string piece = pieces[0];
  for (size_t i = 0; i < piece.size(); ++i) {
    const char kept = piece[i];
    for (int change : {1, 0x80, 0xff}) {
      piece[i] = static_cast<char>(kept ^ change);
      ASSERT_EQ(OpenPiece(grid, piece).status().code(), absl::StatusCode::kInvalidArgument) << i;
    }
    piece[i] = kept;
  }
  EXPECT_TRUE(OpenPiece(grid, piece).ok());
}

TEST(PieceTest, TruncatedAndOversizedAreRefused) {
  const Grid grid = TestGrid();
  const auto payload = RandomPayload(grid, v1::PAYLOAD_CODEC_TOPK_F32, 3);
  const std::string piece = Write(grid, v1::PAYLOAD_CODEC_TOPK_F32, payload, 600)[0];
  for (size_t size = 0; size < piece.size(); ++size) {
    ASSERT_FALSE(OpenPiece(grid, absl::string_view(piece).substr(0, size)).ok()) << size;
    if (size < kPieceHeaderBytes) continue;
    // Also when whoever sent it computed the checksum over the cut piece.
    std::string cut = piece.substr(0, size);
    Reseal(&cut);
    const absl::StatusOr<PieceView> opened = OpenPiece(grid, cut);
    ASSERT_TRUE(opened.ok());
    const absl::Status status =
        ForEachChunk(grid, *opened, [](uint64_t, const Components&) { return absl::OkStatus(); });
    ASSERT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << size;
    ASSERT_THAT(std::string(status.message()), HasSubstr(", chunk "));
  }
  std::string longer = piece + "x";
  Reseal(&longer);
  const absl::Status status = ForEachChunk(
      grid, *OpenPiece(grid, longer), [](uint64_t, const Components&) { return absl::OkStatus(); });
  EXPECT_THAT(std::string(status.message()), HasSubstr("1 bytes after its last chunk, t1, chunk"));
  EXPECT_THAT(std::string(OpenPiece(grid, std::string(kPieceBytesMax + 1, 'I')).status().message()),
              HasSubstr("a piece has 1048577 bytes; it has 20 to 1048576"));
}

TEST(PieceTest, RangeAndLayoutAreChecked) {
  const Grid grid = TestGrid();
  const auto payload = RandomPayload(grid, v1::PAYLOAD_CODEC_TOPK_F32, 3);
  const std::string piece = Write(grid, v1::PAYLOAD_CODEC_TOPK_F32, payload, 600)[0];
  const auto message = [&](size_t at, char value) {
    std::string changed = piece;
    changed[at] = value;
    Reseal(&changed);
    return std::string(OpenPiece(grid, changed).status().message());
  };
  EXPECT_THAT(message(4, 3), HasSubstr("layout 3; this run has 1 and 2"));
  EXPECT_THAT(message(6, 1), HasSubstr("layout 65537"));
  EXPECT_THAT(message(9, 1), HasSubstr("a piece says chunks 256 to before"));
  EXPECT_THAT(message(15, '\xff'), HasSubstr("and the model has 87"));
  std::string empty = piece.substr(0, 20);
  empty[12] = 0;
  Reseal(&empty);
  EXPECT_THAT(std::string(OpenPiece(grid, empty).status().message()), HasSubstr("at least one"));
}

TEST(PieceTest, VisitMayStop) {
  const Grid grid = TestGrid();
  const auto payload = RandomPayload(grid, v1::PAYLOAD_CODEC_TOPK_F32, 3);
  const auto pieces = Write(grid, v1::PAYLOAD_CODEC_TOPK_F32, payload, kPieceBytesMax);
  int calls = 0;
  const absl::Status status =
      ForEachChunk(grid, *OpenPiece(grid, pieces[0]), [&](uint64_t, const Components&) {
        ++calls;
        return absl::AbortedError("enough");
      });
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(calls, 1);
}

TEST(PayloadDigestTest, IsOneForAllCutsAndOrders) {
  const Grid grid = TestGrid();
  const uint32_t seed = std::random_device()();
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  for (v1::PayloadCodec codec : {v1::PAYLOAD_CODEC_TOPK_F32, v1::PAYLOAD_CODEC_MERGED_F32}) {
    const auto payload = RandomPayload(grid, codec, seed);
    const auto whole = Digest(grid, Write(grid, codec, payload, kPieceBytesMax));
    ASSERT_TRUE(whole.ok()) << whole.status();
    EXPECT_EQ(whole->size(), kSha256Bytes);
    for (size_t piece_bytes_max : {1, 200, 777, 2000}) {
      auto pieces = Write(grid, codec, payload, piece_bytes_max);
      EXPECT_GT(pieces.size(), 1u);
      std::shuffle(pieces.begin(), pieces.end(), random);
      const auto cut = Digest(grid, pieces);
      ASSERT_TRUE(cut.ok()) << cut.status();
      EXPECT_EQ(*cut, *whole);
    }
    EXPECT_NE(*Digest(grid, Write(grid, codec, RandomPayload(grid, codec, seed + 1), 5000)),
              *whole);
  }
}

TEST(PayloadDigestTest, RefusesWhatIsNotOnePayload) {
  const Grid grid = TestGrid();
  const auto payload = RandomPayload(grid, v1::PAYLOAD_CODEC_TOPK_F32, 9);
  const auto pieces = Write(grid, v1::PAYLOAD_CODEC_TOPK_F32, payload, 1000);
  EXPECT_THAT(std::string(Digest(grid, {}).status().message()),
              HasSubstr("the payload lacks t0, chunk 0"));
  auto changed = pieces;
  changed.pop_back();
  EXPECT_THAT(std::string(Digest(grid, changed).status().message()), HasSubstr("lacks t1, chunk"));
  changed = pieces;
  changed.erase(changed.begin() + 1);
  EXPECT_THAT(std::string(Digest(grid, changed).status().message()), HasSubstr("lacks t"));
  changed = pieces;
  changed.push_back(pieces[0]);
  EXPECT_THAT(std::string(Digest(grid, changed).status().message()),
              HasSubstr("has twice t0, chunk 0"));
  changed = pieces;
  const auto merged = RandomPayload(grid, v1::PAYLOAD_CODEC_MERGED_F32, 9);
  changed.push_back(Write(grid, v1::PAYLOAD_CODEC_MERGED_F32, merged, 1000)[0]);
  EXPECT_THAT(std::string(Digest(grid, changed).status().message()), HasSubstr("layouts 1 and 2"));
  changed = pieces;
  changed[1][30] = static_cast<char>(changed[1][30] ^ 4);
  EXPECT_THAT(std::string(Digest(grid, changed).status().message()), HasSubstr("CRC-32C"));
}

TEST(ChunkRangesTest, MatchesAPlainSet) {
  const uint32_t seed = std::random_device()();
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  for (int trial = 0; trial < 200; ++trial) {
    ChunkRanges ranges;
    std::vector<bool> model(40, false);
    for (int step = 0; step < 30; ++step) {
      const uint64_t begin = random() % 40, end = begin + random() % (41 - begin);
      const auto count = std::count(model.begin() + begin, model.begin() + end, true);
      EXPECT_EQ(ranges.Overlaps(begin, end), count > 0);
      EXPECT_EQ(ranges.Contains(begin, end), count == static_cast<long>(end - begin));
      const bool added = ranges.Add(begin, end);
      EXPECT_EQ(added, begin < end && count == 0);
      if (added) std::fill(model.begin() + begin, model.begin() + end, true);
      ASSERT_EQ(ranges.chunks(),
                static_cast<uint64_t>(std::count(model.begin(), model.end(), true)));
      for (size_t i = 1; i < ranges.list().size(); ++i) {
        ASSERT_GT(ranges.list()[i].first, ranges.list()[i - 1].second);  // merged where they touch
      }
    }
  }
}

}  // namespace
}  // namespace isthmus
