// Case C3 for a hosted model: a state of 2.2 GiB is uploaded, hosted, written as a snapshot of the
// coordinator's own, loaded again and fetched, in memory that does not grow with it. The scratch
// file that the model is mapped from counts as the file it is.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>

#include "base/limits.h"
#include "server/rocks_store.h"
#include "spec/section_ranges.h"
#include "spec/state_hash.h"
#include "tests/base/proc_status.h"
#include "tests/server/fakes.h"
#include "tests/server/rocks_case.h"

namespace isthmus {
namespace {

constexpr uint64_t kElements = 590558003;  // 2.2 GiB of float32, and an odd number of them
constexpr uint64_t kGrowthBytesMax = uint64_t{256} << 20;
constexpr uint64_t kPieceElements = kSnapshotPieceBytesMax / sizeof(float);

// Finite values that say where they are.
std::string ValuesOf(uint64_t begin, uint64_t end) {
  std::string bytes((end - begin) * sizeof(float), '\0');
  for (uint64_t i = begin; i < end; ++i) {
    const float value = static_cast<float>(static_cast<int32_t>(i * 2654435761u + (i >> 16)));
    std::memcpy(&bytes[(i - begin) * sizeof(float)], &value, sizeof(value));
  }
  return bytes;
}

void ForEachPiece(const std::function<void(uint64_t begin, const std::string& bytes)>& visit) {
  for (uint64_t begin = 0; begin < kElements; begin += kPieceElements) {
    visit(begin, ValuesOf(begin, std::min(begin + kPieceElements, kElements)));
  }
}

class HostedLargeTest : public RocksStoreTest {
 protected:
  HostedLargeTest() {
    spec_ = OuterRunSpec({"a"}, R"(preset: "local_sgd" snapshot { every_rounds: 1 })");
    options_.write_buffer_bytes = size_t{64} << 20;
    v1::TensorSpec* tensor = manifest_.add_tensors();
    tensor->set_name("large");
    tensor->add_shape(kElements);
    tensor->set_dtype(v1::DTYPE_FLOAT32);
    auto grid = Grid::Make(manifest_, spec_.codec());
    EXPECT_TRUE(grid.ok()) << grid.status();
    grid_ = std::make_unique<Grid>(*std::move(grid));
  }

  void StartCoordinator() {
    coordinator_ = nullptr;  // before its store is opened again
    CoordinatorOptions options;
    options.spec = spec_;
    options.store = Open();
    options.scratch_dir = root_;
    // A node that is taken in must have room for a contribution to this model, though none comes.
    options.contributions.memory_bytes = uint64_t{4} << 30;
    options.clock = &clock_;
    options.ticks_by_itself = options.commits_by_itself = false;
    auto started = Coordinator::Start(std::move(options));
    ASSERT_TRUE(started.ok()) << started.status();
    coordinator_ = *std::move(started);
    Measure();
  }
  void Measure() { most_ = std::max(most_, ProcStatusBytes("RssAnon")); }

  v1::SnapshotFacts StartFacts() {
    v1::SnapshotFacts facts;
    facts.set_run("test");
    facts.set_sections(1);
    facts.set_elements(kElements);
    facts.set_fingerprint(Fingerprint(manifest_));
    const uint64_t one = 0x3ff0000000000000;  // 1.0
    facts.set_beta1_power_bits(one);
    facts.set_beta2_power_bits(one);
    StateHasher hasher(*grid_, facts);
    ForEachPiece([&](uint64_t, const std::string& bytes) { ASSERT_TRUE(hasher.Add(bytes).ok()); });
    facts.set_state_sha256(*hasher.Finish());
    return facts;
  }

  void Upload(const FakeNode& node, const v1::SnapshotFacts& facts) {
    v1::UploadSnapshotHeader header;
    header.set_run("test");
    header.set_node("a");
    header.set_incarnation(node.joined.incarnation());
    *header.mutable_facts() = facts;
    WriteRanges(AllRanges(1, kElements), header.mutable_ranges());
    auto sink = coordinator_->BeginUpload(header);
    ASSERT_TRUE(sink.ok()) << sink.status();
    ForEachPiece([&](uint64_t begin, const std::string& bytes) {
      v1::SnapshotPiece piece;
      piece.set_begin(begin);
      piece.set_data(bytes);
      ASSERT_TRUE((*sink)->AddPiece(piece).ok());
      Measure();
    });
    ASSERT_TRUE((*sink)->End().ok());
  }

  // All of the state of a round, compared with what was uploaded as it comes.
  void ExpectFetched(uint64_t round) {
    v1::FetchSnapshotRequest request;
    request.set_round(round);
    WriteRanges(AllRanges(1, kElements), request.mutable_ranges());
    auto source = coordinator_->BeginFetch(request);
    ASSERT_TRUE(source.ok()) << source.status();
    uint64_t elements = 0;
    while (true) {
      const auto message = (*source)->Next();
      ASSERT_TRUE(message.ok()) << message.status();
      if (!message->has_value()) break;
      const std::string& bytes = (*message)->piece().data();
      const uint64_t end = elements + bytes.size() / sizeof(float);
      ASSERT_TRUE(bytes == ValuesOf(elements, end)) << elements;
      elements = end;
      Measure();
    }
    EXPECT_EQ(elements, kElements);
  }

  v1::RunSpec spec_;
  v1::Manifest manifest_;
  std::unique_ptr<Grid> grid_;
  FakeClock clock_;
  std::unique_ptr<Coordinator> coordinator_;
  uint64_t most_ = 0;
};

TEST_F(HostedLargeTest, CaseC3AHostedStateBeyondTwoGibibytes) {
  const auto begin = std::chrono::steady_clock::now();
  const v1::SnapshotFacts facts = StartFacts();
  ASSERT_NO_FATAL_FAILURE(StartCoordinator());
  const uint64_t before = ProcStatusBytes("RssAnon");
  FakeNode node(coordinator_.get(), "a", &spec_);
  *node.join_request.mutable_manifest() = manifest_;
  node.join_request.set_fingerprint(facts.fingerprint());
  node.join_request.set_state_sha256(facts.state_sha256());
  ASSERT_NO_FATAL_FAILURE(node.JoinAndWatch());
  ASSERT_EQ(node.joined.snapshot(), v1::SNAPSHOT_DUTY_UPLOAD);
  ASSERT_NO_FATAL_FAILURE(Upload(node, facts));
  // Into the scratch file, with its hash checked; then the first round opens.
  ASSERT_TRUE(coordinator_->FinishSnapshot().ok());
  Measure();
  node.ExpectOpened(1);
  // A round that changes nothing but the step, after which a snapshot is due.
  ASSERT_TRUE(node.Abstain(1, "test").ok());
  ASSERT_TRUE(coordinator_->CommitOne().ok());
  EXPECT_TRUE(node.ExpectUpdate(1).record.is_void());
  ASSERT_TRUE(coordinator_->FinishSnapshot().ok());
  Measure();
  // Another process loads it, which checks its hash again.
  ASSERT_NO_FATAL_FAILURE(StartCoordinator());
  ASSERT_NO_FATAL_FAILURE(ExpectFetched(1));

  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  const uint64_t grown = most_ > before ? most_ - before : 0;
  EXPECT_LT(grown, kGrowthBytesMax);
  std::printf("result hosted_snapshot bytes=%llu seconds=%.1f rss_anon_bytes=%llu met=%d\n",
              static_cast<unsigned long long>(kElements * sizeof(float)), took.count(),
              static_cast<unsigned long long>(grown), !HasFailure() && grown < kGrowthBytesMax);
}

}  // namespace
}  // namespace isthmus
