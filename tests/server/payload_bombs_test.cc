// R28: payloads that are made to hurt whoever reads them, against the coordinator's real process:
// indices past the end, twice or descending, counts and lengths that overflow, bits at random. The
// checksum of each piece is right, so that it is the decoder that has to see it. Prints
//   measured r28 bombs=... refused=... rounds_unharmed=... grown_kib=...
// which ./dev bench faults compares with its bar.
#include <gtest/gtest.h>

#include <cstdio>
#include <random>

#include "base/limits.h"
#include "tests/base/proc_status.h"
#include "tests/server/fakes.h"
#include "tests/server/served.h"
#include "tests/spec/forgery.h"

namespace isthmus {
namespace {

constexpr int kBombs = 60;  // of each format

void PutU32(uint32_t value, size_t at, std::string* piece) {
  for (size_t i = 0; i < 4; ++i) (*piece)[at + i] = static_cast<char>(value >> (8 * i));
}

// One of the ways in which a piece can be wrong.
void Spoil(std::mt19937* random, std::string* piece) {
  const auto any = [&](size_t end) { return static_cast<size_t>((*random)() % end); };
  const size_t body = piece->size() - kPieceHeaderBytes;
  switch (any(7)) {
    case 0:  // indices and values
      for (size_t i = 0, bits = 1 + any(8); i < bits; ++i) {
        (*piece)[kPieceHeaderBytes + any(body)] ^= static_cast<char>(1 << any(8));
      }
      break;
    case 1:
      piece->resize(kPieceHeaderBytes + any(body));
      break;
    case 2:
      piece->append(1 + any(64), static_cast<char>(any(256)));
      break;
    case 3:
      std::fill(piece->begin() + kPieceHeaderBytes, piece->end(), static_cast<char>(0xff));
      break;
    case 4:  // chunks: some more, or so many that the end overflows
      PutU32(any(2) == 0 ? 0xffffffffu - static_cast<uint32_t>(any(3)) : (*random)() % 1000, 12,
             piece);
      break;
    case 5:  // the first chunk
      PutU32(any(2) == 0 ? 0xffffffffu : (*random)() % 1000, 8, piece);
      break;
    default:  // the layout, and how many nodes sent it
      PutU32((*random)() & 0x00ffff0fu, 4, piece);
  }
  Reseal(piece);
}

std::shared_ptr<const Grid> GridWith(v1::NumberFormat format, v1::RunSpec* spec) {
  spec->mutable_codec()->mutable_numbers()->set_format(format);
  auto grid = Grid::Make(TestManifest(), spec->codec());
  EXPECT_TRUE(grid.ok()) << grid.status();
  return std::make_shared<const Grid>(*std::move(grid));
}

struct Outcome {
  int bombs = 0;
  int refused = 0;
  int unharmed = 0;
  uint64_t grown_kib = 0;
};

// Node b's contribution of a round is a bomb; a's is what the round has then.
void Throw(v1::NumberFormat format, std::mt19937* random, Outcome* outcome) {
  v1::RunSpec spec = TestSpec({"a", "b"}, 0, kBombs + 1);
  const auto grid = GridWith(format, &spec);
  Served served(spec);
  RemoteHost host_a(served.address), host_b(served.address);
  FakeNode a(&host_a, "a"), b(&host_b, "b");
  a.JoinAndWatch();
  b.JoinAndWatch();
  const auto pieces = RandomContribution(*grid, 1);
  const std::string digest = DigestOf(*grid, pieces);
  uint64_t before = 0;
  const auto peak_bytes = [pid = std::to_string(served.process->pid())] {
    return ProcStatusBytes("VmHWM", pid);
  };
  for (uint64_t round = 1; round <= kBombs; ++round) {
    auto bomb = pieces;
    std::string& spoilt = bomb[(*random)() % bomb.size()];
    do {
      spoilt = pieces[&spoilt - bomb.data()];
      Spoil(random, &spoilt);
    } while (spoilt == pieces[&spoilt - bomb.data()]);
    const auto answer = b.Submit(b.Header(round, bomb), bomb, digest);
    const bool refused = answer.status().code() == absl::StatusCode::kInvalidArgument;
    EXPECT_TRUE(refused) << answer.status();
    outcome->refused += refused ? 1 : 0;
    ++outcome->bombs;
    ASSERT_TRUE(a.Submit(a.Header(round, pieces), pieces, digest).ok());
    a.ExpectOpened(round);
    const ReceivedUpdate update = a.ExpectUpdate(round);
    const bool good = update.record.included_size() == 1 && !update.record.is_void();
    outcome->unharmed += good ? 1 : 0;
    ASSERT_TRUE(b.Beat(round).ok());
    // What the first round takes is not its payload's.
    if (round == 1) before = peak_bytes();
  }
  outcome->grown_kib = std::max(outcome->grown_kib, (peak_bytes() - before) >> 10);
  EXPECT_TRUE(served.process->Running()) << served.Log();
}

TEST(PayloadBombs, AreRefusedAndTheRoundGoesOn) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  Outcome outcome;
  for (const v1::NumberFormat format : {v1::NUMBER_FORMAT_F32, v1::NUMBER_FORMAT_F16,
                                        v1::NUMBER_FORMAT_INT4, v1::NUMBER_FORMAT_SIGN1}) {
    SCOPED_TRACE(v1::NumberFormat_Name(format));
    Throw(format, &random, &outcome);
  }
  EXPECT_EQ(outcome.refused, outcome.bombs);
  EXPECT_EQ(outcome.unharmed, outcome.bombs);
  std::printf("measured r28 bombs=%d refused=%d rounds_unharmed=%d grown_kib=%d seed=%u\n",
              outcome.bombs, outcome.refused, outcome.unharmed, static_cast<int>(outcome.grown_kib),
              seed);
}

}  // namespace
}  // namespace isthmus
