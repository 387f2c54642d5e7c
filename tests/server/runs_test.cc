// Several runs in one process: which calls go where, what is created, forked, and still there after
// a start.
#include "server/runs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <memory>

#include "server/monitor_view.h"
#include "server/rocks_store.h"
#include "spec/run_spec.h"
#include "tests/server/fakes.h"
#include "transport/errors.h"

namespace isthmus {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

v1::RunSpec SpecOf(const std::string& run, uint64_t steps = 20) {
  v1::RunSpec spec = TestSpec({"a", "b"}, 0, steps);
  spec.set_run(run);
  return spec;
}

class RunsTest : public ::testing::Test {
 protected:
  RunsTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "isthmus-XXXXXX").string();
    dir_ = mkdtemp(pattern.data());
  }
  ~RunsTest() override {
    runs_ = nullptr;
    std::filesystem::remove_all(dir_);
  }
  void Start(absl::optional<v1::RunSpec> spec = absl::nullopt) {
    const absl::Status started = TryStart(std::move(spec));
    ASSERT_TRUE(started.ok()) << started;
  }
  absl::Status TryStart(absl::optional<v1::RunSpec> spec = absl::nullopt) {
    runs_ = nullptr;
    RunsOptions options;
    options.spec = std::move(spec);
    options.state_dir = dir_;
    options.open_store = [this](const std::string& dir) -> absl::StatusOr<std::unique_ptr<Store>> {
      auto opened = OpenRocksStore({dir, StoreLimits()});
      if (!open_fails_with_.ok()) return open_fails_with_;
      return opened;
    };
    auto started = Runs::Start(std::move(options));
    if (started.ok()) runs_ = *std::move(started);
    return started.status();
  }
  bool Exists(const std::string& name) const { return std::filesystem::exists(dir_ + "/" + name); }
  // Bytes in place of the file that says where a database begins.
  void Damage(const std::string& run) {
    std::ofstream(absl::StrCat(dir_, "/runs/", run, "/CURRENT")) << "nothing of the kind";
  }
  absl::StatusOr<v1::CreateRunResponse> Create(const v1::RunSpec& spec) {
    v1::CreateRunRequest request;
    request.set_spec(spec.DebugString());
    return runs_->CreateRun(request);
  }
  absl::StatusOr<v1::ForkRunResponse> Fork(const std::string& run, const std::string& name,
                                           const std::vector<std::string>& set = {},
                                           absl::optional<uint64_t> round = absl::nullopt) {
    v1::ForkRunRequest request;
    request.set_run(run);
    request.set_name(name);
    for (const std::string& field : set) request.add_set(field);
    if (round.has_value()) request.set_round(*round);
    return runs_->ForkRun(request);
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const Coordinator* coordinator : runs_->All()) names.push_back(coordinator->spec().run());
    return names;
  }
  static std::string Said(const absl::Status& status) { return std::string(status.message()); }

  std::string dir_;
  absl::Status open_fails_with_;
  std::unique_ptr<Runs> runs_;
};

TEST_F(RunsTest, CreatedRunsAreThereAfterAStart) {
  Start();
  EXPECT_THAT(Said(runs_->Find("").status()), HasSubstr("has no run yet"));
  ASSERT_TRUE(Create(SpecOf("first")).ok());
  EXPECT_TRUE(runs_->Find("").ok());
  ASSERT_TRUE(Create(SpecOf("second")).ok());
  ASSERT_TRUE(Create(SpecOf("second")).ok());  // the same again
  EXPECT_THAT(Names(), ElementsAre("first", "second"));
  EXPECT_THAT(Said(runs_->Find("").status()),
              HasSubstr("no run was named; this coordinator has runs 'first', 'second'"));
  EXPECT_EQ(ReasonOf(runs_->Find("third").status()), "UNKNOWN_RUN");
  const absl::Status other = Create(SpecOf("second", 30)).status();
  EXPECT_EQ(other.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(Said(other), HasSubstr("steps is 20 there and 30 here"));
  v1::CreateRunRequest wrong;
  wrong.set_spec("run: \"x\" steps: 0");
  EXPECT_EQ(runs_->CreateRun(wrong).status().code(), absl::StatusCode::kInvalidArgument);

  Start();
  EXPECT_THAT(Names(), ElementsAre("first", "second"));
  // The run of a spec is beside them, and its folder is what it always was.
  Start(SpecOf("given"));
  EXPECT_THAT(Names(), ElementsAre("first", "given", "second"));
  // A folder that a kill left on its way out stops no start.
  std::filesystem::create_directories(dir_ + "/runs/.going");
  std::ofstream(dir_ + "/runs/.going/CURRENT") << "MANIFEST-000005\n";
  Start();
  EXPECT_THAT(Names(), ElementsAre("first", "given", "second"));
}

TEST_F(RunsTest, CallsGoToTheRunTheyName) {
  Start();
  ASSERT_TRUE(Create(SpecOf("test")).ok());
  ASSERT_TRUE(Create(SpecOf("other")).ok());
  FakeNode a(runs_.get(), "a"), b(runs_.get(), "b");
  a.join_request.set_run("test");
  b.join_request.set_run("test");
  a.JoinAndWatch();
  b.JoinAndWatch();
  a.ExpectOpened(1);
  b.ExpectOpened(1);
  ASSERT_TRUE(a.SubmitRandom(1, 1).ok());
  ASSERT_TRUE(b.SubmitRandom(1, 2).ok());
  a.ExpectUpdate(1);
  b.ExpectUpdate(1);
  EXPECT_THAT((*runs_->Find("test"))->WaitingFor(), HasSubstr("round 2"));
  EXPECT_THAT((*runs_->Find("other"))->WaitingFor(), HasSubstr("round 1 opens when"));
  EXPECT_EQ(runs_->live_nodes(), 2u);
  v1::JoinRunRequest ask;
  EXPECT_EQ(runs_->JoinRun(ask).status().code(), absl::StatusCode::kNotFound);
  ask.set_run("other");
  EXPECT_EQ(runs_->JoinRun(ask)->spec().run(), "other");
}

TEST_F(RunsTest, OneThatCannotBeReadDoesNotStopTheOthers) {
  Start();
  for (const char* run : {"first", "second", "third"}) ASSERT_TRUE(Create(SpecOf(run)).ok());
  runs_ = nullptr;
  Damage("second");
  Start();
  EXPECT_THAT(Names(), ElementsAre("first", "third"));
  const absl::Status asked = runs_->Find("second").status();
  EXPECT_EQ(asked.code(), absl::StatusCode::kUnavailable) << asked;  // nodes try again
  EXPECT_EQ(ReasonOf(asked), "RUN_NOT_SERVED");
  EXPECT_THAT(Said(asked), AllOf(HasSubstr("run 'second' is not served"), HasSubstr(dir_),
                                 HasSubstr("Mend that folder or take it away")));
  ASSERT_EQ(runs_->NotServed().size(), 1u);
  EXPECT_EQ(runs_->NotServed()[0].run(), "second");
  EXPECT_EQ(runs_->NotServed()[0].waiting_for(), Said(asked));
  EXPECT_THAT(Said(runs_->Find("").status()), HasSubstr("'first', 'third', 'second'"));
  const absl::Status again = Create(SpecOf("second")).status();
  EXPECT_EQ(again.code(), absl::StatusCode::kAlreadyExists) << again;
  EXPECT_THAT(Said(again), HasSubstr("is not served"));

  // No call that names no run goes to the one that is left; and alone it stops the start.
  runs_ = nullptr;
  std::filesystem::remove_all(dir_ + "/runs/first");
  Start();
  EXPECT_THAT(Said(runs_->Find("").status()), HasSubstr("no run was named"));
  runs_ = nullptr;
  std::filesystem::remove_all(dir_ + "/runs/third");
  EXPECT_THAT(Said(TryStart()), HasSubstr("/runs/second"));
  std::filesystem::remove_all(dir_ + "/runs/second");
  Start();
  ASSERT_TRUE(Create(SpecOf("second")).ok());
}

// What says nothing of a run's folder is no reason to leave the run out.
TEST_F(RunsTest, AFolderInUseOrAFullDiskStopsTheStart) {
  Start();
  ASSERT_TRUE(Create(SpecOf("first")).ok());
  ASSERT_TRUE(Create(SpecOf("second")).ok());
  runs_ = nullptr;
  {
    const auto other = OpenRocksStore({dir_ + "/runs/second", StoreLimits()});
    ASSERT_TRUE(other.ok()) << other.status();
    EXPECT_THAT(Said(TryStart()), HasSubstr("Another coordinator uses it"));
  }
  open_fails_with_ = absl::ResourceExhaustedError("full");
  EXPECT_EQ(Said(TryStart()), "full");
}

TEST_F(RunsTest, ACreationThatFailsLeavesNoFolder) {
  Start();
  open_fails_with_ = absl::ResourceExhaustedError("full");
  EXPECT_EQ(Said(Create(SpecOf("first")).status()), "full");
  EXPECT_FALSE(Exists("runs/first"));
  open_fails_with_ = absl::OkStatus();
  runs_->Stop();
  EXPECT_EQ(Create(SpecOf("first")).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(Exists("runs/first"));
  EXPECT_FALSE(Exists("runs/.going"));
  // What is there already is not touched.
  Start();
  ASSERT_TRUE(Create(SpecOf("first")).ok());
  runs_ = nullptr;
  std::filesystem::rename(dir_ + "/runs/first", dir_ + "/aside");
  Start();
  std::filesystem::rename(dir_ + "/aside", dir_ + "/runs/first");
  EXPECT_THAT(Said(Create(SpecOf("first")).status()), HasSubstr("that came there since"));
  Start();
  EXPECT_THAT(Names(), ElementsAre("first"));
}

TEST_F(RunsTest, LinesOfTheLogNameTheirRun) {
  Start();
  ASSERT_TRUE(Create(SpecOf("test")).ok());
  ASSERT_TRUE(Create(SpecOf("other")).ok());
  FakeNode a(runs_.get(), "a"), b(runs_.get(), "b");
  testing::internal::CaptureStderr();
  a.JoinAndWatch();
  b.JoinAndWatch();
  ASSERT_TRUE(a.SubmitRandom(1, 1).ok());
  ASSERT_TRUE(b.SubmitRandom(1, 2).ok());
  a.ExpectOpened(1);
  a.ExpectUpdate(1);
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, testing::ContainsRegex("node joined node=a .*run=test"));
  EXPECT_THAT(log, testing::ContainsRegex("round committed round=1 .*run=test"));
}

TEST_F(RunsTest, ThereAreOnlySoMany) {
  Start();
  for (size_t i = 0; i < kRunsMax; ++i) {
    ASSERT_TRUE(Create(SpecOf(absl::StrCat("run-", i))).ok());
  }
  const absl::Status one_more = Create(SpecOf("one-more")).status();
  EXPECT_EQ(one_more.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(Said(one_more), HasSubstr("has 32 runs, the limit is 32"));
}

// A snapshot of random values in the store of a run, as a member would have brought it.
struct Kept {
  explicit Kept(const v1::RunSpec& spec) : store(MakeMemoryStore()) {
    const auto grid = TestGrid();
    source.store = store;
    source.spec = spec;
    source.run.set_format(1);
    *source.run.mutable_manifest() = TestManifest();
    source.run.set_fingerprint(Fingerprint(TestManifest()));
    v1::SnapshotFacts& facts = *source.snapshot.mutable_facts();
    facts.set_run(spec.run());
    facts.set_round(7);
    facts.set_step(7);
    facts.set_sections(spec.optimizer().base() == v1::BASE_OPTIMIZER_ADAMW ? 3 : 1);
    facts.set_elements(grid->elements());
    facts.set_beta1_power_bits(0x3fe0000000000000);
    facts.set_beta2_power_bits(0x3fe0000000000000);
    std::mt19937 random(1);
    for (uint32_t section = 0; section < facts.sections(); ++section) {
      for (uint64_t begin = 0; begin < grid->elements(); begin += 1000) {
        const SectionRange range = {section, begin, std::min(grid->elements(), begin + 1000)};
        std::string piece(PieceBytes(range), '\0');
        for (char& byte : piece) byte = static_cast<char>(random() % 64);
        EXPECT_TRUE(store->WritePiece(7, range, piece).ok());
      }
    }
  }
  static std::string Section(const Store& store, uint64_t round, uint32_t section) {
    std::string bytes;
    for (const SectionRange& range : store.Pieces(round)) {
      if (range.section == section) bytes += *store.ReadPiece(round, range);
    }
    return bytes;
  }
  std::shared_ptr<Store> store;
  ForkSource source;
};

v1::RunSpec AdamSpec(const std::string& run) {
  v1::RunSpec spec = SpecOf(run);
  spec.mutable_optimizer()->set_base(v1::BASE_OPTIMIZER_ADAMW);
  return spec;
}

TEST(CopyForFork, TheStateBecomesTheStartStateOfTheNewRun) {
  const Kept kept(AdamSpec("first"));
  const auto store = MakeMemoryStore();
  const auto start = CopyForFork(kept.source, AdamSpec("second"), store.get());
  ASSERT_TRUE(start.ok()) << start.status();
  EXPECT_EQ(start->without, "");
  ASSERT_TRUE(store->Write(start->batch).ok());
  for (uint32_t section = 0; section < 3; ++section) {
    EXPECT_EQ(Kept::Section(*store, 0, section), Kept::Section(*kept.store, 7, section));
  }
  const v1::SnapshotFacts& facts = start->batch.snapshot->facts();
  EXPECT_EQ(facts.run(), "second");
  EXPECT_EQ(facts.round(), 0u);
  EXPECT_EQ(facts.step(), 0u);
  EXPECT_EQ(facts.beta1_power_bits(), 0x3fe0000000000000u);
  EXPECT_EQ(start->batch.run->start_state_sha256(), facts.state_sha256());
  EXPECT_EQ(start->batch.run->fork().run(), "first");
  EXPECT_EQ(start->batch.run->fork().round(), 7u);
}

TEST(CopyForFork, AnotherOptimizerStartsAtZero) {
  const Kept kept(AdamSpec("first"));
  const auto store = MakeMemoryStore();
  const auto less = CopyForFork(kept.source, SpecOf("second"), store.get());
  ASSERT_TRUE(less.ok()) << less.status();
  EXPECT_EQ(less->without, "the optimizer's moments, which start at zero");
  EXPECT_EQ(less->batch.snapshot->facts().sections(), 1u);
  EXPECT_EQ(Kept::Section(*store, 0, 0), Kept::Section(*kept.store, 7, 0));
  const Kept plain(SpecOf("first"));
  const auto other = MakeMemoryStore();
  const auto more = CopyForFork(plain.source, AdamSpec("second"), other.get());
  ASSERT_TRUE(more.ok()) << more.status();
  EXPECT_EQ(more->without, "");
  const std::string moments = Kept::Section(*other, 0, 1);
  EXPECT_EQ(moments, std::string(TestGrid()->elements() * sizeof(float), '\0'));
}

// Its nodes are told to fetch, whatever they hold.
TEST_F(RunsTest, NodesOfAForkFetchItsStartState) {
  const v1::RunSpec spec = SpecOf("test");
  const Kept kept(spec);
  Start();
  std::filesystem::create_directories(dir_ + "/runs/test");
  {
    const auto store = OpenRocksStore({dir_ + "/runs/test", StoreLimits()});
    ASSERT_TRUE(store.ok()) << store.status();
    const auto start = CopyForFork(kept.source, spec, store->get());
    ASSERT_TRUE(start.ok()) << start.status();
    ASSERT_TRUE((*store)->Write(start->batch).ok());
  }
  Start();
  EXPECT_THAT(Names(), ElementsAre("test"));
  FakeNode a(runs_.get(), "a"), b(runs_.get(), "b");
  const absl::Status told = a.Join();
  EXPECT_EQ(told.code(), absl::StatusCode::kOutOfRange) << told;
  EXPECT_EQ(ReasonOf(told), kReasonFetchSnapshot);
  v1::FetchSnapshotRequest fetch;
  fetch.set_run("test");
  v1::SnapshotFacts facts;
  {
    const auto source = runs_->BeginFetch(fetch);
    ASSERT_TRUE(source.ok()) << source.status();
    facts = (*(*source)->Next())->facts();
  }
  EXPECT_EQ(facts.round(), 0u);
  for (FakeNode* node : {&a, &b}) {
    node->join_request.set_state_sha256(facts.state_sha256());
    node->JoinAndWatch();
  }
  a.ExpectOpened(1);
  b.ExpectOpened(1);
  const v1::Run view =
      ViewOfRun((*runs_->Find(""))->Look(), RoundHistory::Pace(), /*with_spec=*/true);
  EXPECT_EQ(view.forked_from().round(), 7u);

  // And a fork of that, from the state it started with. What an earlier try has left is gone.
  std::filesystem::create_directories(dir_ + "/runs/again");
  {
    const auto left = OpenRocksStore({dir_ + "/runs/again", StoreLimits()});
    ASSERT_TRUE(left.ok()) << left.status();
    ASSERT_TRUE((*left)->WritePiece(0, {0, 0, 7}, std::string(28, 'x')).ok());
  }
  const auto forked = Fork("test", "again", {"optimizer.lr=0.5", "seed=9"}, 0);
  ASSERT_TRUE(forked.ok()) << forked.status();
  EXPECT_EQ(forked->state_sha256(), facts.state_sha256());
  EXPECT_EQ(forked->spec().optimizer().lr(), 0.5f);
  v1::FetchSnapshotRequest all;
  all.set_run("again");
  WriteRanges({{0, 0, TestGrid()->elements()}}, all.mutable_ranges());
  {
    const auto source = runs_->BeginFetch(all);
    ASSERT_TRUE(source.ok()) << source.status();
    std::string fetched;
    for (auto next = (*source)->Next(); next.ok() && next->has_value(); next = (*source)->Next()) {
      fetched += (**next).piece().data();
    }
    EXPECT_EQ(fetched, Kept::Section(*kept.store, 7, 0));
  }
  EXPECT_TRUE(Fork("test", "again", {"optimizer.lr=0.5", "seed=9"}, 0).ok());  // the same again
  EXPECT_EQ(Fork("test", "again", {}, 0).status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(Said(Fork("test", "third", {}, 3).status()), HasSubstr("it has round 0"));
  Start();
  EXPECT_THAT(Names(), ElementsAre("again", "test"));
  EXPECT_EQ((*runs_->Find("again"))->fork()->run(), "test");
}

TEST_F(RunsTest, AForkThatCannotBeIsRefusedAndLeavesNoFolder) {
  v1::RunSpec spec = SpecOf("test");
  spec.mutable_model()->set_layers(1);
  spec.mutable_model()->set_heads(2);
  spec.mutable_model()->set_width(64);
  spec.mutable_model()->set_context(16);
  spec.mutable_data()->set_sequences_per_node(4);
  ASSERT_TRUE(CompleteRunSpec(&spec).ok());
  const Kept kept(spec);
  std::filesystem::create_directories(dir_ + "/runs/test");
  {
    const auto store = OpenRocksStore({dir_ + "/runs/test", StoreLimits()});
    ASSERT_TRUE(store.ok()) << store.status();
    const auto all = MakeMemoryStore();
    const auto start = CopyForFork(kept.source, spec, all.get());
    ASSERT_TRUE(start.ok()) << start.status();
    // A snapshot of which a piece is gone.
    ASSERT_TRUE((*store)->WritePiece(0, {0, 0, 1000}, *all->ReadPiece(0, {0, 0, 1000})).ok());
    ASSERT_TRUE((*store)->Write(start->batch).ok());
  }
  Start();
  const absl::Status other = Fork("test", "other", {"model.layers=3", "model.heads=1"}).status();
  EXPECT_EQ(other.code(), absl::StatusCode::kFailedPrecondition) << other;
  EXPECT_EQ(ReasonOf(other), "SPEC_FIELD_FIXED");
  EXPECT_THAT(Said(other),
              AllOf(HasSubstr("model.layers 1 -> 3"), HasSubstr("model.heads 2 -> 1")));
  EXPECT_FALSE(Exists("runs/other"));
  const absl::Status less = Fork("test", "other", {"seed=3"}).status();
  EXPECT_FALSE(less.ok());
  EXPECT_NE(ReasonOf(less), "SPEC_FIELD_FIXED") << less;
  EXPECT_FALSE(Exists("runs/other"));
  EXPECT_FALSE(Exists("runs/.going"));
  EXPECT_THAT(Names(), ElementsAre("test"));
}

TEST_F(RunsTest, WithoutASnapshotThereIsNoFork) {
  Start();
  ASSERT_TRUE(Create(SpecOf("test")).ok());
  EXPECT_THAT(Said(Fork("test", "other").status()),
              AllOf(HasSubstr("has no snapshot to fork from"), HasSubstr("runs checkpoint")));
}

}  // namespace
}  // namespace isthmus
