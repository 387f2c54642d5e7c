// Runs whose model the coordinator hosts, or that keep it on the nodes, driven step by step: nodes
// that send random contributions and hold the x that updates make of it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/optional.h"
#include "server/coordinator.h"
#include "spec/section_ranges.h"
#include "spec/state_hash.h"
#include "tests/server/fakes.h"
#include "tests/server/outer_runs.h"

namespace isthmus {

inline std::string BytesOfValues(const std::vector<float>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
}

class HostedFixture : public ::testing::Test {
 protected:
  struct Node {
    std::unique_ptr<FakeNode> speaker;
    std::vector<float> x;
    std::vector<v1::UpdateRecord> records;
  };

  // A run of nodes a, b, c.
  void Begin(const std::string& text, std::shared_ptr<Store> store = MakeMemoryStore()) {
    spec_ = OuterRunSpec({"a", "b", "c"}, text);
    grid_ = GridOf(spec_.codec());
    store_ = std::move(store);
    nodes_.clear();
    Restart(1);
    for (const v1::NodeSpec& node : spec_.nodes()) {
      nodes_.push_back({std::make_unique<FakeNode>(host(), node.name(), &spec_), {}, {}});
    }
    std::mt19937 random(4711);
    std::normal_distribution<float> normal;
    start_.resize(grid_->elements());
    for (float& value : start_) value = 0.1f * normal(random);
  }

  // Another process with the same store.
  absl::Status TryRestart(int threads) {
    coordinator_ = nullptr;
    CoordinatorOptions options;
    options.spec = spec_;
    options.store = store_;
    options.clock = &clock_;
    options.fold_threads = threads;
    options.ticks_by_itself = options.commits_by_itself = false;
    auto started = Coordinator::Start(std::move(options));
    if (!started.ok()) return started.status();
    coordinator_ = *std::move(started);
    for (Node& node : nodes_) node.speaker->Reconnect(host());
    return absl::OkStatus();
  }
  void Restart(int threads) {
    const absl::Status started = TryRestart(threads);
    ASSERT_TRUE(started.ok()) << started;
  }

  Coordinator* host() { return coordinator_.get(); }
  FakeNode& speaker(size_t node) { return *nodes_[node].speaker; }

  v1::SnapshotFacts StartFacts() const {
    v1::SnapshotFacts facts;
    facts.set_run("test");
    facts.set_sections(1);
    facts.set_elements(grid_->elements());
    facts.set_fingerprint(Fingerprint(TestManifest()));
    const uint64_t one = 0x3ff0000000000000;  // 1.0
    facts.set_beta1_power_bits(one);
    facts.set_beta2_power_bits(one);
    StateHasher hasher(*grid_, facts);
    EXPECT_TRUE(hasher.Add(BytesOfValues(start_)).ok());
    facts.set_state_sha256(*hasher.Finish());
    return facts;
  }

  // Node a brings the start state; all join.
  void Start() {
    const v1::SnapshotFacts facts = StartFacts();
    for (Node& node : nodes_) {
      node.x = start_;
      node.speaker->join_request.set_state_sha256(facts.state_sha256());
    }
    speaker(0).JoinAndWatch();
    if (IsHosted(spec_)) UploadStart(facts);
    for (size_t i = 1; i < nodes_.size(); ++i) speaker(i).JoinAndWatch();
  }
  void UploadStart(const v1::SnapshotFacts& facts) {
    ASSERT_EQ(speaker(0).joined.snapshot(), v1::SNAPSHOT_DUTY_UPLOAD);
    v1::UploadSnapshotHeader header;
    header.set_run("test");
    header.set_node("a");
    header.set_incarnation(speaker(0).joined.incarnation());
    *header.mutable_facts() = facts;
    WriteRanges(AllRanges(1, grid_->elements()), header.mutable_ranges());
    auto sink = host()->BeginUpload(header);
    ASSERT_TRUE(sink.ok()) << sink.status();
    const std::string bytes = BytesOfValues(start_);
    for (uint64_t at = 0; at < grid_->elements(); at += 3000) {
      v1::SnapshotPiece piece;
      piece.set_begin(at);
      piece.set_data(bytes.substr(at * sizeof(float), 3000 * sizeof(float)));
      ASSERT_TRUE((*sink)->AddPiece(piece).ok());
    }
    ASSERT_TRUE((*sink)->End().ok());
    Finish();
  }
  // Snapshots that are due.
  void Finish() {
    const absl::Status finished = host()->FinishSnapshot();
    ASSERT_TRUE(finished.ok()) << finished;
  }

  void Submit(uint64_t round, size_t node) {
    const auto pieces = OuterPieces(*grid_, static_cast<uint32_t>(100 * round + node));
    const auto receipt =
        speaker(node).Submit(speaker(node).Header(round, pieces), pieces, DigestOf(*grid_, pieces));
    ASSERT_TRUE(receipt.ok()) << receipt.status();
    ASSERT_TRUE(receipt->complete());
  }
  void Receive(uint64_t round, size_t node) {
    const ReceivedUpdate update = speaker(node).ExpectUpdate(round);
    nodes_[node].records.push_back(update.record);
    if (!update.record.is_void() && IsHosted(spec_)) {
      ApplyHosted(spec_, *grid_, round, update.pieces, &nodes_[node].x);
    }
    last_pieces_ = update.pieces;
  }
  // All of these take part.
  void Round(uint64_t round, const std::vector<size_t>& members = {0, 1, 2}) {
    for (size_t node : members) {
      const v1::RoundOpened opened = speaker(node).ExpectOpened(round);
      ASSERT_EQ(opened.step(), StepAfterRound(spec_, round));
      // No member has to do with snapshots of a hosted model.
      if (IsHosted(spec_)) {
        ASSERT_EQ(opened.snapshot(), v1::SNAPSHOT_DUTY_UNSPECIFIED);
      }
      Submit(round, node);
    }
    const absl::Status committed = host()->CommitOne();
    ASSERT_TRUE(committed.ok()) << committed;
    for (size_t node : members) Receive(round, node);
  }
  void RunRounds(uint64_t first, uint64_t last) {
    for (uint64_t round = first; round <= last && !HasFatalFailure(); ++round) Round(round);
  }

  struct Fetched {
    v1::SnapshotFacts facts;
    std::vector<float> x;
  };
  absl::StatusOr<Fetched> Fetch(absl::optional<uint64_t> round = absl::nullopt) {
    v1::FetchSnapshotRequest request;
    if (round.has_value()) request.set_round(*round);
    WriteRanges(AllRanges(1, grid_->elements()), request.mutable_ranges());
    auto source = host()->BeginFetch(request);
    if (!source.ok()) return source.status();
    Fetched fetched;
    std::string bytes;
    while (true) {
      const auto message = (*source)->Next();
      if (!message.ok()) return message.status();
      if (!message->has_value()) break;
      if ((*message)->has_facts()) fetched.facts = (*message)->facts();
      bytes += (*message)->piece().data();
    }
    fetched.x.resize(bytes.size() / sizeof(float));
    std::memcpy(fetched.x.data(), bytes.data(), bytes.size());
    return fetched;
  }
  // The coordinator's x after that round is that of the nodes.
  void ExpectSnapshot(uint64_t round, const std::vector<float>& x) {
    const auto fetched = Fetch(round);
    ASSERT_TRUE(fetched.ok()) << fetched.status();
    EXPECT_TRUE(SameBits(fetched->x, x)) << round;
    EXPECT_EQ(fetched->facts.sections(), 1u);
    EXPECT_EQ(fetched->facts.step(), StepAfterRound(spec_, round));
    StateHasher hasher(*grid_, fetched->facts);
    ASSERT_TRUE(hasher.Add(BytesOfValues(fetched->x)).ok());
    EXPECT_EQ(fetched->facts.state_sha256(), *hasher.Finish());
  }
  std::vector<uint64_t> Kept() const {
    std::vector<uint64_t> rounds;
    for (const auto& snapshot : store_->State().snapshots) {
      rounds.push_back(snapshot.facts().round());
    }
    return rounds;
  }

  v1::RunSpec spec_;
  std::shared_ptr<const Grid> grid_;
  std::shared_ptr<Store> store_;
  FakeClock clock_;
  std::unique_ptr<Coordinator> coordinator_;
  std::vector<Node> nodes_;
  std::vector<float> start_;
  std::vector<std::string> last_pieces_;
};

}  // namespace isthmus
