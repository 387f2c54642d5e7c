// Replicated states and their uploads, and a coordinator that commits when it is told to.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "server/coordinator.h"
#include "spec/manifest.h"
#include "spec/section_ranges.h"
#include "spec/state_hash.h"
#include "tests/server/fakes.h"

namespace isthmus {

// The state of TestManifest after a round: random values, and what is said of them.
struct TestState {
  TestState(uint64_t round, const std::string& update_sha256, uint32_t seed,
            uint32_t sections = 1) {
    const std::shared_ptr<const Grid> grid = TestGrid();
    std::mt19937 random(seed);
    values.resize(sections * grid->elements() * sizeof(float));
    for (char& byte : values) byte = static_cast<char>(random());
    facts.set_run("test");
    facts.set_round(round);
    facts.set_update_sha256(update_sha256);
    facts.set_step(round);
    facts.set_sections(sections);
    facts.set_elements(grid->elements());
    facts.set_fingerprint(Fingerprint(TestManifest()));
    const uint64_t one = 0x3ff0000000000000;  // 1.0
    facts.set_beta1_power_bits(sections == 1 ? one : one - 12345);
    facts.set_beta2_power_bits(sections == 1 ? one : one - 1);
    StateHasher hasher(*grid, facts);
    EXPECT_TRUE(hasher.Add(values).ok());
    facts.set_state_sha256(*hasher.Finish());
  }

  std::string Values(const SectionRange& range) const {
    return values.substr((range.section * facts.elements() + range.begin) * sizeof(float),
                         (range.end - range.begin) * sizeof(float));
  }
  v1::SnapshotPiece Piece(const SectionRange& range) const {
    v1::SnapshotPiece piece;
    piece.set_section(range.section);
    piece.set_begin(range.begin);
    piece.set_data(Values(range));
    return piece;
  }
  // The whole of it in pieces of so many elements.
  std::vector<v1::SnapshotPiece> Pieces(uint64_t cut = 1000) const {
    std::vector<v1::SnapshotPiece> pieces;
    for (const SectionRange& all : AllRanges(facts.sections(), facts.elements())) {
      for (uint64_t at = 0; at < all.end; at += cut) {
        pieces.push_back(Piece({all.section, at, std::min(all.end, at + cut)}));
      }
    }
    return pieces;
  }

  v1::SnapshotFacts facts;
  std::string values;
};

// A coordinator that commits, ticks and judges snapshots when the test says so.
struct DrivenCoordinator {
  DrivenCoordinator(const v1::RunSpec& spec, std::shared_ptr<Store> store) {
    CoordinatorOptions options;
    options.spec = spec;
    options.store = std::move(store);
    options.clock = &clock;
    options.ticks_by_itself = options.commits_by_itself = false;
    auto started = Coordinator::Start(std::move(options));
    EXPECT_TRUE(started.ok()) << started.status();
    host = *std::move(started);
  }

  FakeClock clock;
  std::unique_ptr<Coordinator> host;
};

// Runs, and the calls of nodes that upload and fetch.
class SnapshotFixture : public ::testing::Test {
 protected:
  void Begin(const v1::RunSpec& spec, std::shared_ptr<Store> store) {
    spec_ = spec;
    store_ = std::move(store);
    coordinator_ = std::make_unique<DrivenCoordinator>(spec_, store_);
    nodes_.clear();
    for (const v1::NodeSpec& node : spec.nodes()) {
      nodes_.push_back(std::make_unique<FakeNode>(host(), node.name()));
    }
  }
  // The same store, or the one that is given; nodes know the new coordinator.
  void Restart(std::shared_ptr<Store> store = nullptr) {
    coordinator_ = nullptr;
    if (store != nullptr) store_ = std::move(store);
    coordinator_ = std::make_unique<DrivenCoordinator>(spec_, store_);
    for (auto& node : nodes_) node->Reconnect(host());
  }

  Coordinator* host() { return coordinator_->host.get(); }
  FakeNode& node(size_t number) { return *nodes_[number]; }
  const std::string& name(size_t number) const {
    return spec_.nodes(static_cast<int>(number)).name();
  }

  // All of these nodes take part; what they were told to do with the state after it.
  std::vector<v1::SnapshotDuty> Round(uint64_t round, const std::vector<size_t>& members) {
    std::vector<v1::SnapshotDuty> duties;
    for (size_t i : members) duties.push_back(node(i).ExpectOpened(round).snapshot());
    for (size_t i : members) {
      const auto receipt = node(i).SubmitRandom(round, static_cast<uint32_t>(100 * round + i));
      EXPECT_TRUE(receipt.ok()) << receipt.status();
    }
    EXPECT_TRUE(host()->CommitOne().ok());
    for (size_t i : members) node(i).ExpectUpdate(round);
    return duties;
  }
  // Of the last committed round.
  TestState StateOf(uint32_t seed, uint32_t sections = 1) {
    const uint64_t round = store_->last_round();
    return TestState(round, *store_->RecordSha256(round), seed, sections);
  }

  v1::UploadSnapshotHeader Header(size_t number, const TestState& state) {
    v1::UploadSnapshotHeader header;
    header.set_run("test");
    header.set_node(name(number));
    header.set_incarnation(node(number).joined.incarnation());
    *header.mutable_facts() = state.facts;
    WriteRanges(AllRanges(state.facts.sections(), state.facts.elements()), header.mutable_ranges());
    return header;
  }
  // One call. What is missing after it.
  absl::StatusOr<std::vector<SectionRange>> Upload(const v1::UploadSnapshotHeader& header,
                                                   const std::vector<v1::SnapshotPiece>& pieces) {
    auto sink = host()->BeginUpload(header);
    if (!sink.ok()) return sink.status();
    for (const v1::SnapshotPiece& piece : pieces) {
      const absl::Status status = (*sink)->AddPiece(piece);
      if (!status.ok()) return status;
    }
    const auto response = (*sink)->End();
    if (!response.ok()) return response.status();
    return ReadRanges(response->missing(), header.facts().sections(), header.facts().elements());
  }
  void UploadAll(size_t number, const TestState& state) {
    const auto missing = Upload(Header(number, state), state.Pieces());
    ASSERT_TRUE(missing.ok()) << missing.status();
    EXPECT_TRUE(missing->empty());
  }
  absl::Status Report(size_t number, const TestState& state) {
    v1::HeartbeatRequest request;
    request.set_run("test");
    request.set_node(name(number));
    request.set_incarnation(node(number).joined.incarnation());
    request.set_acknowledged_round(state.facts.round());
    request.set_state_round(state.facts.round());
    request.set_state_sha256(state.facts.state_sha256());
    return host()->Heartbeat(request).status();
  }

  struct Fetched {
    v1::SnapshotFacts facts;
    std::vector<SectionRange> ranges;  // as they came
    std::string values;                // one after the other
  };
  absl::StatusOr<Fetched> Fetch(absl::optional<uint64_t> round,
                                const std::vector<SectionRange>& ranges = {}) {
    v1::FetchSnapshotRequest request;
    request.set_run("test");
    if (round.has_value()) request.set_round(*round);
    WriteRanges(ranges, request.mutable_ranges());
    auto source = host()->BeginFetch(request);
    if (!source.ok()) return source.status();
    Fetched fetched;
    for (bool first = true;; first = false) {
      const auto message = (*source)->Next();
      if (!message.ok()) return message.status();
      if (!message->has_value()) return fetched;
      EXPECT_EQ((*message)->has_facts(), first);
      if (first) {
        fetched.facts = (*message)->facts();
        continue;
      }
      const v1::SnapshotPiece& piece = (*message)->piece();
      fetched.ranges.push_back(
          {piece.section(), piece.begin(), piece.begin() + piece.data().size() / sizeof(float)});
      fetched.values += piece.data();
    }
  }
  // Rounds whose snapshots count.
  std::vector<uint64_t> Kept() {
    std::vector<uint64_t> rounds;
    for (const auto& snapshot : store_->State().snapshots) {
      rounds.push_back(snapshot.facts().round());
    }
    return rounds;
  }

  v1::RunSpec spec_;
  std::shared_ptr<Store> store_;
  std::unique_ptr<DrivenCoordinator> coordinator_;
  std::vector<std::unique_ptr<FakeNode>> nodes_;
};

}  // namespace isthmus
