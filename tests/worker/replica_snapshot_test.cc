// A replica's state leaves as parts of a snapshot and comes back on other numbers of ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "spec/run_spec.h"
#include "spec/state_hash.h"
#include "tests/worker/torch_fixture.h"
#include "worker/replica.h"

namespace isthmus {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kStep = 41;
constexpr uint64_t kSeam = 777;  // elements of a piece: across tensors, units and shards

// The whole state, as a coordinator keeps it.
struct Whole {
  v1::SnapshotFacts facts;
  std::vector<SectionRange> held;
  std::vector<std::vector<float>> sections;
};

// Gives this state out, and does nothing else.
class StateClient final : public RankClient {
 public:
  explicit StateClient(const Whole* whole) : whole_(whole) {}

  absl::StatusOr<v1::SnapshotFacts> FetchSnapshot(
      std::optional<uint64_t> round, const std::vector<SectionRange>& ranges,
      const std::function<absl::Status(const v1::SnapshotPiece&)>& on_piece) override {
    EXPECT_EQ(round, whole_->facts.round());
    for (SectionRange range : ranges) {
      while (range.begin < range.end) {
        const uint64_t end = std::min(range.end, (range.begin / kSeam + 1) * kSeam);
        v1::SnapshotPiece piece;
        piece.set_section(range.section);
        piece.set_begin(range.begin);
        piece.set_data(whole_->sections[range.section].data() + range.begin,
                       (end - range.begin) * sizeof(float));
        const absl::Status taken = on_piece(piece);
        if (!taken.ok()) return taken;
        range.begin = end;
      }
      asked_.push_back(range);
    }
    return whole_->facts;
  }
  size_t asked() const { return asked_.size(); }

  absl::StatusOr<v1::JoinRunResponse> FetchSpec() override { return No(); }
  absl::StatusOr<v1::JoinRunResponse> Join(const v1::JoinRunRequest&) override { return No(); }
  absl::StatusOr<std::optional<v1::RoundOpened>> WaitOpened(const ApplyUpdate&, uint64_t) override {
    return No();
  }
  absl::StatusOr<std::optional<Next>> WaitNext(uint64_t) override { return No(); }
  void Submit(const v1::RoundOpened&, std::vector<std::string>, const Work&) override {}
  void Abstain(const v1::RoundOpened&, const std::string&) override {}
  absl::StatusOr<Update> WaitUpdate() override { return No(); }
  bool UpdateReady() override { return true; }
  void Acknowledge(const Update&) override {}
  void Checkpointed(uint64_t) override {}
  void ReportState(uint64_t, const std::string&) override {}
  void UploadSnapshot(std::shared_ptr<const SnapshotParts>) override {}
  void FinishUpload() override {}
  void Leave(const std::string&) override {}
  SessionCounters counters() const override { return SessionCounters(); }

 private:
  static absl::Status No() { return absl::UnimplementedError("only snapshots"); }

  const Whole* const whole_;
  std::vector<SectionRange> asked_;
};

// Says where it belongs, so that a value in another place shows.
float ValueAt(const std::string& tensor, uint32_t section, uint64_t element) {
  uint32_t mixed = section * 977 + static_cast<uint32_t>(element) * 2654435761u;
  for (char c : tensor) mixed = mixed * 31 + static_cast<unsigned char>(c);
  return static_cast<float>(mixed >> 8) * 0x1p-24f;
}

TrainState FilledState(Replica* replica, uint32_t sections) {
  TrainState state = replica->State();
  for (size_t i = 0; i < state.parts.size(); ++i) {
    const auto fill = [&](uint32_t section, std::vector<float>* values) {
      for (size_t j = 0; j < values->size(); ++j) {
        (*values)[j] = ValueAt(state.parts[i].tensor, section, state.parts[i].first_element + j);
      }
    };
    fill(0, &state.parameters[i]);
    if (sections > 1) fill(1, &state.method.step.first_moments[i]);
    if (sections > 2) fill(2, &state.method.step.second_moments[i]);
  }
  // They run on without moments, too.
  state.method.step.beta1_power = std::pow(0.9, 3);
  state.method.step.beta2_power = std::pow(0.95, 3);
  return state;
}

std::unique_ptr<Replica> MakeReplica(const v1::RunSpec& spec, ProcessGroup* group) {
  ReplicaOptions options;
  options.spec = spec;
  options.group = group;
  auto replica = Replica::Make(options);
  EXPECT_TRUE(replica.ok()) << replica.status();
  return *std::move(replica);
}

// What the ranks of a node upload together.
Whole UploadedBy(const v1::RunSpec& spec, int ranks, uint32_t sections) {
  Whole whole;
  std::mutex mutex;
  RunRanks(ranks, [&](ProcessGroup* group) {
    const auto replica = MakeReplica(spec, group);
    ASSERT_TRUE(replica->SetState(FilledState(replica.get(), sections)).ok());
    const auto facts = replica->StateFacts(kStep);
    ASSERT_TRUE(facts.ok()) << facts.status();
    const SnapshotParts copy = replica->CopyState();
    std::lock_guard<std::mutex> lock(mutex);
    if (whole.sections.empty()) {
      whole.facts = *facts;
      whole.facts.set_round(40);
      whole.sections.assign(facts->sections(), std::vector<float>(facts->elements()));
    }
    EXPECT_EQ(facts->state_sha256(), whole.facts.state_sha256());
    for (size_t i = 0; i < copy.parts.size(); ++i) {
      const SnapshotParts::Part& part = copy.parts[i];
      const SectionRange range = {part.section, part.begin, part.begin + part.values.size()};
      EXPECT_LT(range.begin, range.end);
      whole.held.push_back(range);
      std::copy(part.values.begin(), part.values.end(),
                whole.sections[part.section].begin() + part.begin);
      if (i == 0) continue;
      EXPECT_TRUE(std::tie(copy.parts[i - 1].section, copy.parts[i - 1].begin) <
                  std::tie(part.section, part.begin));
    }
  });
  std::sort(whole.held.begin(), whole.held.end());
  return whole;
}

// Without moments, with one array (the momentum of SGD, or with frozen tensors an outer
// optimizer's), with moments; without and with frozen tensors.
class ReplicaSnapshotTest : public ::testing::TestWithParam<std::tuple<uint32_t, bool>> {};

v1::RunSpec Spec(uint32_t sections, bool frozen) {
  v1::RunSpec spec = SmallSpec();
  if (sections == 3) spec.mutable_optimizer()->set_base(v1::BASE_OPTIMIZER_ADAMW);
  if (sections == 2 && !frozen) spec.mutable_optimizer()->set_momentum(0.5f);
  if (sections == 2 && frozen) {
    spec.clear_codec();
    spec.set_preset("diloco");
    spec.mutable_optimizer()->clear_base();
    spec.set_placement(v1::PLACEMENT_REPLICATED);
    const absl::Status complete = CompleteRunSpec(&spec);
    EXPECT_TRUE(complete.ok()) << complete;
  }
  if (frozen) spec.mutable_model()->add_frozen("*.attn.*");
  return spec;
}

TEST_P(ReplicaSnapshotTest, AnyNumberOfRanksGivesAndTakesTheSame) {
  const uint32_t sections = std::get<0>(GetParam());
  const bool frozen = std::get<1>(GetParam());
  const v1::RunSpec spec = Spec(sections, frozen);
  std::string first;
  for (int from : {1, 2, 8}) {
    SCOPED_TRACE(absl::StrCat("from ", from, " ranks"));
    const Whole whole = UploadedBy(spec, from, sections);
    ASSERT_EQ(whole.facts.sections(), sections);
    EXPECT_EQ(whole.facts.frozen_sha256().empty(), !frozen);
    const uint64_t one = 0x3ff0000000000000;  // 1.0
    EXPECT_EQ(whole.facts.beta1_power_bits() == one, sections == 1);
    EXPECT_EQ(whole.facts.beta2_power_bits() == one, sections == 1);
    // Each element once.
    uint64_t elements = 0;
    for (const SectionRange& range : whole.held) elements += range.end - range.begin;
    EXPECT_EQ(elements, whole.facts.sections() * whole.facts.elements());
    EXPECT_TRUE(
        Missing(AllRanges(whole.facts.sections(), whole.facts.elements()), whole.held, 1).empty());
    if (first.empty()) first = whole.facts.state_sha256();
    EXPECT_EQ(whole.facts.state_sha256(), first);

    for (int to : {1, 2, 8}) {
      SCOPED_TRACE(absl::StrCat("to ", to, " ranks"));
      RunRanks(to, [&](ProcessGroup* group) {
        const auto replica = MakeReplica(spec, group);
        if (group->rank() == 0) {  // as the coordinator hashes what it has
          StateHasher hasher(replica->model().grid(), whole.facts);
          for (const std::vector<float>& section : whole.sections) {
            ASSERT_TRUE(hasher
                            .Add({reinterpret_cast<const char*>(section.data()),
                                  section.size() * sizeof(float)})
                            .ok());
          }
          EXPECT_EQ(*hasher.Finish(), whole.facts.state_sha256());
        }
        const auto residual = replica->State().method.residual;
        StateClient client(&whole);
        v1::SnapshotFacts facts;
        const absl::Status fetched = replica->FetchState(&client, 40, &facts);
        ASSERT_TRUE(fetched.ok()) << fetched;
        EXPECT_EQ(facts.SerializeAsString(), whole.facts.SerializeAsString());
        const auto ours = replica->StateFacts(kStep);
        ASSERT_TRUE(ours.ok()) << ours.status();
        EXPECT_EQ(ours->state_sha256(), whole.facts.state_sha256());
        EXPECT_EQ(ours->beta1_power_bits(), whole.facts.beta1_power_bits());
        EXPECT_EQ(ours->beta2_power_bits(), whole.facts.beta2_power_bits());
        const TrainState expected = FilledState(replica.get(), sections);
        EXPECT_EQ(replica->State().parameters, expected.parameters);
        // What is the node's own stays.
        EXPECT_EQ(replica->State().method.residual, residual);
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Specs, ReplicaSnapshotTest,
                         ::testing::Combine(::testing::Values(1u, 2u, 3u), ::testing::Bool()));

TEST(ReplicaSnapshot, ASnapshotOfSomethingElseIsRefusedBeforeAnythingChanges) {
  const v1::RunSpec spec = Spec(1, false);
  const Whole whole = UploadedBy(spec, 1, 1);
  RunRanks(1, [&](ProcessGroup* group) {
    const auto replica = MakeReplica(spec, group);
    const std::string before = *replica->StateSha256(kStep);
    const auto refused = [&](const std::function<void(v1::SnapshotFacts*)>& spoil,
                             const std::string& sentence) {
      Whole other = whole;
      spoil(&other.facts);
      StateClient client(&other);
      v1::SnapshotFacts facts;
      const absl::Status status = replica->FetchState(&client, 40, &facts);
      EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr(sentence));
      EXPECT_EQ(client.asked(), 0u);
      EXPECT_EQ(*replica->StateSha256(kStep), before);
    };
    refused([](auto* facts) { facts->set_sections(3); }, "has sections and elements 3, ");
    refused([](auto* facts) { facts->set_elements(7); }, "has sections and elements 1, 7");
    refused([](auto* facts) { facts->set_fingerprint(std::string(32, 'x')); }, "has model 787878");
    refused([](auto* facts) { facts->set_frozen_sha256(std::string(32, 'x')); },
            "give the same --start_file on all nodes");
  });
}

}  // namespace
}  // namespace isthmus
