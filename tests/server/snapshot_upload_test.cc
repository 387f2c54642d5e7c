// UploadSnapshot at the coordinator: what comes in, in whatever order, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <random>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "server/rocks_store.h"
#include "tests/server/snapshot_states.h"
#include "transport/errors.h"

namespace isthmus {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr auto kFailed = absl::StatusCode::kFailedPrecondition;
constexpr auto kNotFound = absl::StatusCode::kNotFound;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

// A header of node a for the state after round 2, spoilt, and what is said of it.
struct WrongHeader {
  const char* what;
  std::function<void(v1::UploadSnapshotHeader*)> spoil;
  absl::StatusCode code;
  const char* reason;
  std::string sentence;
};

std::vector<WrongHeader> WrongCallers(uint64_t b_incarnation) {
  return {
      {"run", [](auto* h) { h->set_run("other"); }, kNotFound, "UNKNOWN_RUN",
       "there is no run 'other'"},
      {"node unknown", [](auto* h) { h->set_node("z"); }, absl::StatusCode::kNotFound,
       "UNKNOWN_NODE", "no node 'z'"},
      {"node not asked",
       [b_incarnation](auto* h) {
         h->set_node("b");
         h->set_incarnation(b_incarnation);
       },
       kFailed, "SNAPSHOT_NOT_WANTED", "of node 'b' is not asked for"},
      {"incarnation", [](auto* h) { h->set_incarnation(h->incarnation() + 1); }, kFailed,
       kReasonIncarnationFenced, "the current one is"},
      {"round", [](auto* h) { h->mutable_facts()->set_round(1); }, kFailed, "SNAPSHOT_NOT_WANTED",
       "that after round 2 of node 'a' is"},
  };
}

std::vector<WrongHeader> WrongFacts() {
  return {
      {"facts.run", [](auto* h) { h->mutable_facts()->set_run("other"); }, kFailed,
       "SNAPSHOT_FACTS", "facts.run of the state after round 2 is other, here it is test"},
      {"facts.update_sha256", [](auto* h) { h->mutable_facts()->set_update_sha256(Sha256Of("x")); },
       kFailed, "SNAPSHOT_FACTS", "facts.update_sha256"},
      {"facts.fingerprint", [](auto* h) { h->mutable_facts()->set_fingerprint(Sha256Of("x")); },
       kFailed, "SNAPSHOT_FACTS", "facts.fingerprint"},
      {"facts.step", [](auto* h) { h->mutable_facts()->set_step(3); }, kFailed, "SNAPSHOT_FACTS",
       "facts.step of the state after round 2 is 3, here it is 2"},
      {"facts.elements", [](auto* h) { h->mutable_facts()->set_elements(7); }, kFailed,
       "SNAPSHOT_FACTS", "facts.elements of the state after round 2 is 7, here it is 14110"},
      {"facts.sections", [](auto* h) { h->mutable_facts()->set_sections(3); }, kFailed,
       "SNAPSHOT_FACTS", "facts.sections of the state after round 2 is 3, here it is 1"},
      {"facts.beta1_power_bits", [](auto* h) { h->mutable_facts()->set_beta1_power_bits(1); },
       kFailed, "SNAPSHOT_FACTS", "beta1_power_bits"},
      {"facts.beta2_power_bits", [](auto* h) { h->mutable_facts()->set_beta2_power_bits(1); },
       kFailed, "SNAPSHOT_FACTS", "beta2_power_bits"},
      {"facts.state_sha256", [](auto* h) { h->mutable_facts()->set_state_sha256("short"); },
       kFailed, "SNAPSHOT_FACTS", "facts.state_sha256 of the state after round 2 is of 5 bytes"},
      {"no state_sha256", [](auto* h) { h->mutable_facts()->clear_state_sha256(); }, kFailed,
       "SNAPSHOT_FACTS", "of 0 bytes"},
      {"facts.frozen_sha256", [](auto* h) { h->mutable_facts()->set_frozen_sha256("short"); },
       kFailed, "SNAPSHOT_FACTS", "facts.frozen_sha256"},
  };
}

std::vector<WrongHeader> WrongRanges() {
  return {
      {"range outside", [](auto* h) { h->mutable_ranges(0)->set_end(14111); }, kInvalid,
       "SNAPSHOT_RANGES", "[0, 14111) of section 0"},
      {"range of no section", [](auto* h) { h->mutable_ranges(0)->set_section(1); }, kInvalid,
       "SNAPSHOT_RANGES", "the state has 1 sections"},
      {"empty range", [](auto* h) { h->mutable_ranges(0)->set_end(0); }, kInvalid,
       "SNAPSHOT_RANGES", "[0, 0)"},
      {"too many ranges",
       [](auto* h) {
         h->clear_ranges();
         for (uint64_t i = 0; i <= kSnapshotRangesMax; ++i) {
           WriteRanges({{0, 2 * i, 2 * i + 1}}, h->mutable_ranges());
         }
       },
       kInvalid, "SNAPSHOT_RANGES", "there are 4097 ranges"},
  };
}

class UploadTest : public SnapshotFixture {
 protected:
  // Node a is to upload the state after round 1.
  void BeginUpload(const std::vector<std::string>& nodes, std::shared_ptr<Store> store) {
    v1::RunSpec spec = TestSpec(nodes, 0, 9);
    spec.mutable_snapshot()->set_every_rounds(1);
    Begin(spec, std::move(store));
    all_.clear();
    for (size_t i = 0; i < nodes.size(); ++i) {
      node(i).JoinAndWatch();
      all_.push_back(i);
    }
    // The first round opens with the joins, before anything is planned.
    const auto first = Round(1, all_);
    EXPECT_EQ(first[0], v1::SNAPSHOT_DUTY_UNSPECIFIED);
  }
  absl::Status Status(const v1::UploadSnapshotHeader& header,
                      const std::vector<v1::SnapshotPiece>& pieces) {
    return Upload(header, pieces).status();
  }

  std::vector<size_t> all_;
};

TEST_F(UploadTest, PiecesComeInAnyOrderTwiceAndInSeveralCalls) {
  BeginUpload({"a", "b"}, MakeMemoryStore());
  EXPECT_THAT(Round(2, all_), ElementsAre(v1::SNAPSHOT_DUTY_UPLOAD, v1::SNAPSHOT_DUTY_REPORT));
  const TestState state = StateOf(1);
  std::vector<v1::SnapshotPiece> pieces = state.Pieces(700);
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  std::shuffle(pieces.begin(), pieces.end(), random);
  const size_t half = pieces.size() / 2;
  const std::vector<v1::SnapshotPiece> first(pieces.begin(), pieces.begin() + half);
  // A call without pieces asks.
  EXPECT_THAT(*Upload(Header(0, state), {}),
              ElementsAre(SectionRange{0, 0, state.facts.elements()}));
  const auto missing = Upload(Header(0, state), first);
  ASSERT_TRUE(missing.ok()) << missing.status();
  uint64_t elements = 0;
  for (const SectionRange& range : *missing) elements += range.end - range.begin;
  for (size_t i = half; i < pieces.size(); ++i) elements -= pieces[i].data().size() / sizeof(float);
  EXPECT_EQ(elements, 0u);
  ASSERT_TRUE(host()->FinishSnapshot().ok());
  EXPECT_THAT(Kept(), IsEmpty());
  EXPECT_THAT(*Upload(Header(0, state), pieces), IsEmpty());
  // What is missing is said of the header's ranges alone.
  v1::UploadSnapshotHeader nothing = Header(0, state);
  nothing.clear_ranges();
  EXPECT_THAT(*Upload(nothing, {}), IsEmpty());

  ASSERT_TRUE(host()->FinishSnapshot().ok());
  EXPECT_THAT(Kept(), IsEmpty());  // b has not said what it holds
  ASSERT_TRUE(Report(1, state).ok());
  ASSERT_TRUE(host()->FinishSnapshot().ok());
  EXPECT_THAT(Kept(), ElementsAre(2));
  const auto fetched = Fetch(absl::nullopt, AllRanges(1, state.facts.elements()));
  ASSERT_TRUE(fetched.ok()) << fetched.status();
  EXPECT_EQ(fetched->facts.SerializeAsString(), state.facts.SerializeAsString());
  EXPECT_EQ(fetched->values, state.values);
  // Whoever asks now learns that nothing is wanted.
  EXPECT_EQ(ReasonOf(Status(Header(0, state), {})), "SNAPSHOT_NOT_WANTED");
}

TEST_F(UploadTest, TwoCallsSideBySideMakeOneState) {
  v1::RunSpec spec = TestSpec({"a"}, 0, 9);
  spec.mutable_snapshot()->set_every_rounds(1);
  spec.mutable_optimizer()->set_base(v1::BASE_OPTIMIZER_ADAMW);
  Begin(spec, MakeMemoryStore());
  node(0).JoinAndWatch();
  Round(1, {0});
  Round(2, {0});
  const TestState state = StateOf(1, 3);
  const std::vector<v1::SnapshotPiece> pieces = state.Pieces();
  std::vector<std::unique_ptr<SnapshotSink>> calls;
  for (int i = 0; i < 3; ++i) {
    auto call = host()->BeginUpload(Header(0, state));
    ASSERT_TRUE(call.ok()) << call.status();
    calls.push_back(*std::move(call));
  }
  calls.pop_back();  // one that breaks off
  for (size_t i = 0; i < pieces.size(); ++i) {
    ASSERT_TRUE(calls[i % 2]->AddPiece(pieces[i]).ok());
  }
  for (auto& call : calls) EXPECT_THAT(call->End()->missing(), IsEmpty());
  ASSERT_TRUE(host()->FinishSnapshot().ok());
  EXPECT_EQ(Fetch(2, AllRanges(3, state.facts.elements()))->values, state.values);
}

// Design section 6: pieces that arrived stay over a restart; the record makes them count.
TEST_F(UploadTest, AnUploadGoesOnWhenTheCoordinatorStartsAgain) {
  std::string dir = ::testing::TempDir() + "/upload_XXXXXX";
  ASSERT_NE(mkdtemp(dir.data()), nullptr);
  const auto open = [&]() -> std::shared_ptr<Store> {
    auto store = OpenRocksStore({dir, StoreLimits()});
    EXPECT_TRUE(store.ok()) << store.status();
    return *std::move(store);
  };
  BeginUpload({"a", "b"}, open());
  Round(2, all_);
  const TestState state = StateOf(1);
  const std::vector<v1::SnapshotPiece> pieces = state.Pieces();
  ASSERT_GT(pieces.size(), 8u);
  ASSERT_TRUE(Upload(Header(0, state), {pieces.begin() + 3, pieces.begin() + 6}).ok());
  const auto reopen = [&] {
    coordinator_ = nullptr;
    store_ = nullptr;
    Restart(open());
  };
  reopen();
  // Nothing of it is asked for again.
  EXPECT_THAT(*Upload(Header(0, state), {}),
              ElementsAre(SectionRange{0, 0, 3000}, SectionRange{0, 6000, state.facts.elements()}));
  EXPECT_TRUE(absl::IsInvalidArgument(Status(Header(0, state), {state.Piece({0, 3500, 4500})})));
  UploadAll(0, state);
  // It ends after the last piece, before the verdict: the uploader, which asks on, makes it go on.
  reopen();
  ASSERT_TRUE(host()->FinishSnapshot().ok());
  EXPECT_THAT(Kept(), IsEmpty());
  EXPECT_THAT(*Upload(Header(0, state), {}), IsEmpty());
  ASSERT_TRUE(Report(1, state).ok());
  ASSERT_TRUE(host()->FinishSnapshot().ok());
  EXPECT_THAT(Kept(), ElementsAre(2));
  reopen();
  EXPECT_EQ(Fetch(2, AllRanges(1, state.facts.elements()))->values, state.values);
  EXPECT_EQ(ReasonOf(Status(Header(0, state), {})), "SNAPSHOT_NOT_WANTED");
}

TEST_F(UploadTest, AStateThatIsNotWhatWasSaidIsAskedForAnewOfAnotherMember) {
  BeginUpload({"a", "b"}, MakeMemoryStore());
  Round(2, all_);
  const TestState state = StateOf(1);
  std::vector<v1::SnapshotPiece> pieces = state.Pieces();
  (*pieces[4].mutable_data())[17] ^= 1;
  ASSERT_TRUE(Upload(Header(0, state), pieces).ok());
  ASSERT_TRUE(Report(1, state).ok());
  ASSERT_TRUE(host()->FinishSnapshot().ok());
  EXPECT_THAT(Kept(), IsEmpty());
  EXPECT_EQ(ReasonOf(Status(Header(0, state), {})), "SNAPSHOT_NOT_WANTED");
  // Round 3 had opened before; the state after round 4 is the next that can be asked for.
  Round(3, all_);
  EXPECT_THAT(Round(4, all_), ElementsAre(v1::SNAPSHOT_DUTY_REPORT, v1::SNAPSHOT_DUTY_UPLOAD));
  const TestState next = StateOf(2);
  const absl::Status other = Status(Header(0, next), {});
  EXPECT_EQ(ReasonOf(other), "SNAPSHOT_NOT_WANTED");
  EXPECT_THAT(std::string(other.message()), AllOf(HasSubstr("of node 'a' is not asked for"),
                                                  HasSubstr("round 4 of node 'b' is")));
  UploadAll(1, next);
  ASSERT_TRUE(Report(0, next).ok());
  ASSERT_TRUE(host()->FinishSnapshot().ok());
  EXPECT_THAT(Kept(), ElementsAre(4));
}

TEST_F(UploadTest, AnUploaderThatGoesAwayIsReplaced) {
  v1::RunSpec spec = TestSpec({"a", "b"}, 1, 9);
  spec.mutable_snapshot()->set_every_rounds(1);
  Begin(spec, MakeMemoryStore());
  node(0).JoinAndWatch();
  node(1).JoinAndWatch();  // round 1 is open already
  Round(1, {0});
  node(1).ExpectUpdate(1);
  EXPECT_THAT(Round(2, {0, 1}), ElementsAre(v1::SNAPSHOT_DUTY_UPLOAD, v1::SNAPSHOT_DUTY_REPORT));
  ASSERT_TRUE(node(0).Leave().ok());
  ASSERT_TRUE(host()->FinishSnapshot().ok());
  EXPECT_THAT(Round(3, {1}), ElementsAre(v1::SNAPSHOT_DUTY_UNSPECIFIED));
  EXPECT_THAT(Round(4, {1}), ElementsAre(v1::SNAPSHOT_DUTY_UPLOAD));
  UploadAll(1, StateOf(4));
  ASSERT_TRUE(host()->FinishSnapshot().ok());
  EXPECT_THAT(Kept(), ElementsAre(4));
}

TEST_F(UploadTest, EveryWrongHeaderIsRefused) {
  BeginUpload({"a", "b"}, MakeMemoryStore());
  const TestState early(2, Sha256Of("not yet"), 1);
  EXPECT_EQ(ReasonOf(Status(Header(0, early), {})), "SNAPSHOT_TOO_EARLY");
  Round(2, all_);
  const TestState state = StateOf(1);
  for (const auto& cases :
       {WrongCallers(node(1).joined.incarnation()), WrongFacts(), WrongRanges()}) {
    for (const WrongHeader& wrong : cases) {
      SCOPED_TRACE(wrong.what);
      v1::UploadSnapshotHeader header = Header(0, state);
      wrong.spoil(&header);
      const absl::Status status = Status(header, {});
      EXPECT_EQ(status.code(), wrong.code) << status;
      EXPECT_EQ(ReasonOf(status), wrong.reason) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr(wrong.sentence));
    }
  }
  // None of it was taken for the facts of the state.
  UploadAll(0, state);
  // Each call says the same as the first one.
  v1::UploadSnapshotHeader other = Header(0, state);
  other.mutable_facts()->set_state_sha256(Sha256Of("another"));
  EXPECT_THAT(std::string(Status(other, {}).message()), HasSubstr("as an earlier call said"));
  other = Header(0, state);
  other.mutable_facts()->set_frozen_sha256(Sha256Of("another"));
  EXPECT_THAT(std::string(Status(other, {}).message()), HasSubstr("(or another field)"));
}

TEST_F(UploadTest, EveryWrongPieceIsRefused) {
  BeginUpload({"a", "b"}, MakeMemoryStore());
  Round(2, all_);
  const TestState state = StateOf(1);
  const uint64_t elements = state.facts.elements();
  ASSERT_TRUE(Upload(Header(0, state), {state.Piece({0, 1000, 2000})}).ok());
  const auto refused = [&](const v1::SnapshotPiece& piece) {
    const absl::Status status = Status(Header(0, state), {piece});
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_EQ(ReasonOf(status), "SNAPSHOT_RANGES");
    return std::string(status.message());
  };
  v1::SnapshotPiece piece = state.Piece({0, elements - 10, elements});
  piece.set_begin(elements - 9);
  EXPECT_THAT(refused(piece), HasSubstr(absl::StrCat("[", elements - 9, ", ", elements + 1, ")")));
  piece.set_begin(~uint64_t{0} - 2);  // wraps
  refused(piece);
  piece = state.Piece({0, 0, 10});
  piece.set_section(1);
  EXPECT_THAT(refused(piece), HasSubstr("of section 1"));
  for (size_t bytes : {0u, 1u, 3u, 5u, 39u}) {
    piece = state.Piece({0, 0, 10});
    piece.mutable_data()->resize(bytes);
    EXPECT_THAT(refused(piece), HasSubstr(absl::StrCat("a piece has ", bytes, " bytes")));
  }
  piece.mutable_data()->resize(kSnapshotPieceBytesMax + 4);
  EXPECT_THAT(refused(piece), HasSubstr("4 to 524288 bytes"));
  // Over what is held, cut in another way: before, behind, inside, around.
  for (const SectionRange& range : std::vector<SectionRange>{{0, 500, 1001},
                                                             {0, 1999, 2500},
                                                             {0, 1200, 1300},
                                                             {0, 900, 2100},
                                                             {0, 1000, 1999},
                                                             {0, 1001, 2000},
                                                             {0, 1000, 2001},
                                                             {0, 999, 2000}}) {
    EXPECT_THAT(refused(state.Piece(range)), HasSubstr("held in a piece cut in another way"));
  }
  EXPECT_TRUE(Upload(Header(0, state), {state.Piece({0, 1000, 2000}), state.Piece({0, 2000, 2001}),
                                        state.Piece({0, 999, 1000})})
                  .ok());
}

// A call that was under way when its node joined again, or when its plan was begun anew, ends.
TEST_F(UploadTest, ACallOfAnEarlierIncarnationEnds) {
  BeginUpload({"a", "b"}, MakeMemoryStore());
  Round(2, all_);
  const TestState state = StateOf(1);
  auto call = host()->BeginUpload(Header(0, state));
  ASSERT_TRUE(call.ok()) << call.status();
  node(0).join_request.set_attempt(node(0).joined.attempt());
  ASSERT_TRUE(node(0).Join().ok());
  EXPECT_EQ(ReasonOf((*call)->AddPiece(state.Pieces()[0])), kReasonIncarnationFenced);
  EXPECT_EQ(ReasonOf((*call)->End().status()), kReasonIncarnationFenced);
  UploadAll(0, state);
}

}  // namespace
}  // namespace isthmus
