// Case C3: states beyond 2 GiB arrive whole, in memory that does not grow with them.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstring>

#include "base/sha256.h"
#include "tests/base/proc_status.h"
#include "tests/transport/fake_snapshots.h"
#include "tests/transport/loopback.h"

namespace isthmus {
namespace {

constexpr uint64_t kElements = 590558003;  // 2.2 GiB of float32, and an odd number of them
constexpr uint64_t kRssBytesMax = uint64_t{64} << 20;

// Values that say where they are, in each of their 64-bit places.
std::string ValuesOf(const SectionRange& range) {
  std::string values((range.end - range.begin) * sizeof(float), '\0');
  for (uint64_t i = range.begin; i < range.end; ++i) {
    const uint32_t mixed = static_cast<uint32_t>(i * 2654435761u + (i >> 16));
    std::memcpy(&values[(i - range.begin) * sizeof(float)], &mixed, sizeof(mixed));
  }
  return values;
}

TEST(SnapshotStreamTest, CaseC3AStateBeyondTwoGibibytesArrives) {
  FakeSnapshots host;
  host.facts.set_sections(1);
  host.facts.set_elements(kElements);
  host.piece_elements = kSnapshotPieceBytesMax / sizeof(float);
  Sha256 made;
  host.make_values = [&](const SectionRange& range) {
    std::string values = ValuesOf(range);
    made.Update(values);
    return values;
  };
  const auto server = StartServer(&host, "127.0.0.1:0");
  ASSERT_TRUE(server.ok()) << server.status();
  const auto client = Connect((*server)->addresses()[0]);
  v1::FetchSnapshotRequest request;
  WriteRanges(AllRanges(1, kElements), request.mutable_ranges());

  const uint64_t before = ProcStatusBytes("VmHWM");
  const auto begin = std::chrono::steady_clock::now();
  Sha256 received;
  uint64_t elements = 0;
  const auto download = client->FetchSnapshot(request);
  v1::FetchSnapshotResponse message;
  ASSERT_TRUE(download->Next(&message));
  while (download->Next(&message)) {
    ASSERT_EQ(message.piece().begin(), elements);
    elements += message.piece().data().size() / sizeof(float);
    received.Update(message.piece().data());
  }
  ASSERT_TRUE(download->Finish().ok());
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  const uint64_t grown = ProcStatusBytes("VmHWM") - before;
  EXPECT_EQ(elements, kElements);
  const bool equal = received.Finish() == made.Finish();
  EXPECT_TRUE(equal);
  EXPECT_LT(grown, kRssBytesMax);
  const uint64_t bytes = elements * sizeof(float);
  std::printf("result snapshot_stream bytes=%llu seconds=%.1f rss_bytes=%llu met=%d\n",
              static_cast<unsigned long long>(bytes), took.count(),
              static_cast<unsigned long long>(grown),
              equal && elements == kElements && grown < kRssBytesMax);
}

}  // namespace
}  // namespace isthmus
