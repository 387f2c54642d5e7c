// Everything a node can get wrong: each is a status with a reason and a sentence that names what is
// wrong, and none changes what the others see.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <limits>

#include "base/limits.h"
#include "tests/server/fakes.h"
#include "transport/errors.h"

namespace isthmus {
namespace {

using ::testing::HasSubstr;

void ExpectRefusal(const absl::Status& status, absl::StatusCode code, const std::string& reason,
                   const std::vector<std::string>& words) {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_EQ(ReasonOf(status), reason) << status;
  for (const std::string& word : words) {
    EXPECT_THAT(std::string(status.message()), HasSubstr(word));
  }
}

class BadJoin : public ::testing::Test {
 protected:
  // What a second node is told when its request is spoilt like this.
  absl::Status Refusal(const std::function<void(v1::JoinRunRequest*)>& spoil) {
    FakeNode b(coordinator_.host.get(), "b");
    spoil(&b.join_request);
    return b.Join();
  }

  void SetUp() override { a_.JoinAndWatch(); }
  // The run goes on with a sound node b.
  void TearDown() override {
    FakeNode b(coordinator_.host.get(), "b");
    b.JoinAndWatch();
    b.ExpectOpened(1);
  }

  TestCoordinator coordinator_{TestSpec({"a", "b"})};
  FakeNode a_{coordinator_.host.get(), "a"};
};

TEST_F(BadJoin, UnknownRunOrNode) {
  ExpectRefusal(Refusal([](auto* r) { r->set_run("other"); }), absl::StatusCode::kNotFound,
                "UNKNOWN_RUN", {"'other'", "'test'"});
  ExpectRefusal(Refusal([](auto* r) { r->set_node("c"); }), absl::StatusCode::kNotFound,
                "UNKNOWN_NODE", {"'c'", "a, b"});
}

TEST_F(BadJoin, RoleAndSizes) {
  ExpectRefusal(Refusal([](auto* r) { r->set_role(v1::ROLE_RANK); }),
                absl::StatusCode::kInvalidArgument, "WRONG_ROLE", {"ROLE_RANK", "agent"});
  ExpectRefusal(Refusal([](auto* r) { r->set_secret("short"); }),
                absl::StatusCode::kInvalidArgument, "WRONG_SIZE", {"secret", "5", "16 to 64"});
  ExpectRefusal(Refusal([](auto* r) { r->set_state_sha256("x"); }),
                absl::StatusCode::kInvalidArgument, "WRONG_SIZE", {"state_sha256", "32"});
  ExpectRefusal(Refusal([](auto* r) { r->clear_fingerprint(); }),
                absl::StatusCode::kInvalidArgument, "WRONG_SIZE", {"fingerprint", "32"});
  ExpectRefusal(Refusal([](auto* r) { r->set_last_update_sha256(std::string(32, 'x')); }),
                absl::StatusCode::kInvalidArgument, "WRONG_SIZE", {"last_round 0"});
}

TEST_F(BadJoin, FingerprintThatIsNotTheManifests) {
  ExpectRefusal(Refusal([](auto* r) { r->set_fingerprint(std::string(32, 'x')); }),
                absl::StatusCode::kFailedPrecondition, "FINGERPRINT_DIFFERS",
                {HexPrefix(std::string(32, 'x')), HexPrefix(Fingerprint(TestManifest()))});
}

TEST_F(BadJoin, AttemptBeyondAnyCount) {
  for (const uint64_t attempt : {kIncarnationMax + 1, ~uint64_t{0} - 1, ~uint64_t{0}}) {
    ExpectRefusal(Refusal([attempt](auto* r) { r->set_attempt(attempt); }),
                  absl::StatusCode::kInvalidArgument, "ATTEMPT",
                  {std::to_string(attempt), std::to_string(kIncarnationMax)});
  }
}

TEST_F(BadJoin, OtherShapeOrName) {
  ExpectRefusal(Refusal([](auto* r) {
                  r->mutable_manifest()->mutable_tensors(1)->set_shape(0, 4999);
                  r->set_fingerprint(Fingerprint(r->manifest()));
                }),
                absl::StatusCode::kFailedPrecondition, "MANIFEST_DIFFERS",
                {"'bias'", "4999", "5000"});
  ExpectRefusal(Refusal([](auto* r) {
                  r->mutable_manifest()->mutable_tensors(3)->set_name("tail");
                  r->set_fingerprint(Fingerprint(r->manifest()));
                }),
                absl::StatusCode::kFailedPrecondition, "MANIFEST_DIFFERS", {"'tail'", "'head'"});
}

// One node declares bfloat16 where the run has float32: refused when it joins, both named.
TEST_F(BadJoin, OtherDType) {
  ExpectRefusal(Refusal([](auto* r) {
                  r->mutable_manifest()->mutable_tensors(0)->set_dtype(v1::DTYPE_BFLOAT16);
                  r->set_fingerprint(Fingerprint(r->manifest()));
                }),
                absl::StatusCode::kFailedPrecondition, "MANIFEST_DIFFERS",
                {"'wte'", "bfloat16", "float32"});
}

TEST_F(BadJoin, OtherStartState) {
  ExpectRefusal(Refusal([](auto* r) { r->set_state_sha256(std::string(32, 'x')); }),
                absl::StatusCode::kFailedPrecondition, "START_STATE_DIFFERS",
                {HexPrefix(std::string(32, 'x')), HexPrefix(Sha256Of("start state"))});
}

TEST_F(BadJoin, AheadOfTheCoordinator) {
  ExpectRefusal(Refusal([](auto* r) {
                  r->set_last_round(7);
                  r->set_last_update_sha256(std::string(32, 'x'));
                }),
                absl::StatusCode::kDataLoss, "AHEAD_OF_COORDINATOR", {"round 7", "is 0"});
}

TEST(FirstJoin, FixesTheModelUntilItIsGone) {
  TestCoordinator coordinator(TestSpec({"a", "b"}));
  FakeNode a(coordinator.host.get(), "a"), b(coordinator.host.get(), "b");
  // The first of all, so that there is nothing to compare with.
  a.join_request.mutable_manifest()->mutable_tensors(0)->set_dtype(v1::DTYPE_BFLOAT16);
  const absl::Status dtype = a.Join();
  EXPECT_THAT(std::string(dtype.message()), HasSubstr("'wte' has dtype bfloat16"));
  EXPECT_THAT(std::string(dtype.message()), HasSubstr("float32"));
  *a.join_request.mutable_manifest() = TestManifest();
  ASSERT_TRUE(a.Join().ok());
  // It may correct itself while it is alone, and others may when it is gone.
  a.join_request.mutable_manifest()->mutable_tensors(0)->set_shape(0, 131);
  a.join_request.set_fingerprint(Fingerprint(a.join_request.manifest()));
  ASSERT_TRUE(a.Join().ok());
  EXPECT_EQ(ReasonOf(b.Join()), "MANIFEST_DIFFERS");
  ASSERT_TRUE(a.Leave().ok());
  ASSERT_TRUE(b.Join().ok());
  EXPECT_EQ(ReasonOf(a.Join()), "MANIFEST_DIFFERS");
}

TEST(FirstJoin, FixesTheHeldOutTokensUntilItIsGone) {
  TestCoordinator coordinator(TestSpec({"a", "b"}));
  FakeNode a(coordinator.host.get(), "a"), b(coordinator.host.get(), "b");
  const std::string one(32, '1'), other(32, '2');
  a.join_request.set_heldout_sha256(std::string(31, '1'));
  ExpectRefusal(a.Join(), absl::StatusCode::kInvalidArgument, "WRONG_SIZE",
                {"heldout_sha256 has 31 bytes; it has 32"});
  a.join_request.set_heldout_sha256(one);
  ASSERT_TRUE(a.Join().ok());
  b.join_request.set_heldout_sha256(other);
  ExpectRefusal(b.Join(), absl::StatusCode::kFailedPrecondition, "HELDOUT_DIFFERS",
                {HexPrefix(one), HexPrefix(other), "--heldout_data"});
  b.join_request.clear_heldout_sha256();  // a loop that evaluates nothing
  ASSERT_TRUE(b.Join().ok());
  ASSERT_TRUE(b.Leave().ok());
  ASSERT_TRUE(a.Leave().ok());
  b.join_request.set_heldout_sha256(other);
  ASSERT_TRUE(b.Join().ok());
  EXPECT_EQ(ReasonOf(a.Join()), "HELDOUT_DIFFERS");
}

TEST(FirstJoin, MayNotChangeWhatAContributionWasComputedOn) {
  TestCoordinator coordinator(TestSpec({"a", "b"}));
  FakeNode a(coordinator.host.get(), "a"), b(coordinator.host.get(), "b");
  ASSERT_TRUE(a.Join().ok());
  ASSERT_TRUE(b.Join().ok());
  ASSERT_TRUE(a.SubmitRandom(1, 1).ok());
  ASSERT_TRUE(a.Leave().ok());
  ASSERT_TRUE(b.Leave().ok());
  b.join_request.set_state_sha256(std::string(32, 'x'));
  EXPECT_EQ(ReasonOf(b.Join()), "START_STATE_DIFFERS");
}

TEST(FirstJoin, TheSpecPinsTheStartState) {
  v1::RunSpec spec = TestSpec({"a"});
  spec.set_start_state_sha256(std::string(32, 'p'));
  TestCoordinator coordinator(spec);
  FakeNode a(coordinator.host.get(), "a");
  ExpectRefusal(a.Join(), absl::StatusCode::kFailedPrecondition, "START_STATE_DIFFERS",
                {HexPrefix(std::string(32, 'p')), HexPrefix(Sha256Of("start state"))});
  a.join_request.set_state_sha256(std::string(32, 'p'));
  EXPECT_TRUE(a.Join().ok());
}

TEST(BadHistory, ANodeWithAnotherHistoryIsRefusedAlone) {
  TestCoordinator coordinator(TestSpec({"a", "b"}, 1));
  FakeNode a(coordinator.host.get(), "a"), b(coordinator.host.get(), "b");
  a.JoinAndWatch();
  a.ExpectOpened(1);
  ASSERT_TRUE(a.SubmitRandom(1, 1).ok());
  const ReceivedUpdate update = a.ExpectUpdate(1);
  b.join_request.set_last_round(1);
  b.join_request.set_last_update_sha256(std::string(32, 'x'));
  ExpectRefusal(b.Join(), absl::StatusCode::kDataLoss, "HISTORY_DIFFERS",
                {"round 1", HexPrefix(std::string(32, 'x')), HexPrefix(update.record.sha256())});
  b.join_request.set_last_update_sha256(update.record.sha256());
  EXPECT_TRUE(b.Join().ok());
  EXPECT_TRUE(a.SubmitRandom(2, 1).ok());
}

// Two nodes, round 1 open; b is spoilt, a is sound. The quorum is 1, so the round commits with a.
class BadSubmission : public ::testing::Test {
 protected:
  void SetUp() override {
    a_.JoinAndWatch();
    a_.ExpectOpened(1);
    ASSERT_TRUE(a_.SubmitRandom(1, 1).ok());
    a_.ExpectUpdate(1);
    a_.ExpectOpened(2);
    ASSERT_TRUE(b_.Join().ok());
    b_.Watch();
    b_.ExpectUpdate(1);
    ASSERT_TRUE(b_.Beat(1).ok());
    ASSERT_TRUE(a_.SubmitRandom(2, 2).ok());
    b_.ExpectUpdate(2);
    b_.ExpectOpened(3);
    a_.ExpectUpdate(2);
    a_.ExpectOpened(3);
  }

  absl::Status HeaderRefusal(const std::function<void(v1::SubmitHeader*)>& spoil) {
    v1::SubmitHeader header = b_.Header(3, pieces_);
    spoil(&header);
    return coordinator_.host->BeginSubmit(header).status();
  }

  absl::Status PieceRefusal(const std::string& piece) {
    auto sink = coordinator_.host->BeginSubmit(b_.Header(3, pieces_));
    if (!sink.ok()) return sink.status();
    return (*sink)->AddPiece(piece);
  }

  // After a refusal that ends b's contribution the round commits with a alone.
  void ExpectCommitWithoutB() {
    ASSERT_TRUE(a_.SubmitRandom(3, 3).ok());
    const ReceivedUpdate update = b_.ExpectUpdate(3);
    ASSERT_EQ(update.record.included_size(), 1);
    EXPECT_EQ(update.record.included(0).node(), "a");
  }

  // After one that does not, b can still send.
  void ExpectCommitWithB() {
    const auto receipt = b_.SubmitRandom(3, 4);
    ASSERT_TRUE(receipt.ok()) << receipt.status();
    ASSERT_TRUE(a_.SubmitRandom(3, 3).ok());
    EXPECT_EQ(b_.ExpectUpdate(3).record.included_size(), 2);
  }

  std::shared_ptr<const Grid> grid_ = TestGrid();
  std::vector<std::string> pieces_ = RandomContribution(*grid_, 9);
  TestCoordinator coordinator_{TestSpec({"a", "b"}, 1, 9)};
  FakeNode a_{coordinator_.host.get(), "a"}, b_{coordinator_.host.get(), "b"};
};

TEST_F(BadSubmission, NotNowOrNotYouCostsNothing) {
  using Code = absl::StatusCode;
  ExpectRefusal(HeaderRefusal([](auto* h) { h->set_run("x"); }), Code::kNotFound, "UNKNOWN_RUN",
                {"'x'"});
  ExpectRefusal(HeaderRefusal([](auto* h) { h->set_node("x"); }), Code::kNotFound, "UNKNOWN_NODE",
                {"'x'", "a, b"});
  ExpectRefusal(HeaderRefusal([](auto* h) { h->set_incarnation(99); }), Code::kFailedPrecondition,
                kReasonIncarnationFenced, {"99"});
  ExpectRefusal(HeaderRefusal([](auto* h) { h->set_round(2); }), Code::kAborted, "ROUND_CLOSED",
                {"round 2"});
  ExpectRefusal(HeaderRefusal([](auto* h) { h->set_round(4); }), Code::kFailedPrecondition,
                "ROUND_NOT_OPEN", {"round 4", "round 3 is"});
  ExpectRefusal(HeaderRefusal([](auto* h) { h->set_round(0); }), Code::kInvalidArgument,
                "ROUND_ZERO", {"round"});
  ExpectRefusal(HeaderRefusal([](auto* h) { h->set_acknowledged_round(3); }), Code::kDataLoss,
                "AHEAD_OF_COORDINATOR", {"round 3", "is 2"});
  ExpectCommitWithB();
}

struct HeaderCase {
  const char* name;
  absl::StatusCode code;
  const char* reason;
  const char* word;
  void (*spoil)(v1::SubmitHeader*);
};

const HeaderCase kHeaderCases[] = {
    {"role", absl::StatusCode::kInvalidArgument, "WRONG_ROLE", "ROLE_RANK",
     [](v1::SubmitHeader* h) { h->set_role(v1::ROLE_RANK); }},
    {"fragment", absl::StatusCode::kInvalidArgument, "UNKNOWN_FRAGMENT", "fragment is 1",
     [](v1::SubmitHeader* h) { h->set_fragment(1); }},
    {"base", absl::StatusCode::kFailedPrecondition, "WRONG_BASE_ROUND", "base_round is 1",
     [](v1::SubmitHeader* h) { h->set_base_round(1); }},
    {"codec", absl::StatusCode::kFailedPrecondition, "WRONG_CODEC", "MERGED",
     [](v1::SubmitHeader* h) { h->set_codec(v1::PAYLOAD_CODEC_MERGED); }},
    {"attempt", absl::StatusCode::kInvalidArgument, "WRONG_ATTEMPT", "attempt is 0",
     [](v1::SubmitHeader* h) { h->set_attempt(0); }},
    {"future_attempt", absl::StatusCode::kInvalidArgument, "WRONG_ATTEMPT", "attempt is 99",
     [](v1::SubmitHeader* h) { h->set_attempt(99); }},
    {"no_ranges", absl::StatusCode::kInvalidArgument, "WRONG_RANGES", "empty",
     [](v1::SubmitHeader* h) { h->clear_ranges(); }},
    {"range_beyond", absl::StatusCode::kInvalidArgument, "WRONG_RANGES", "1000000",
     [](v1::SubmitHeader* h) { h->mutable_ranges(0)->set_end(1000000); }},
    {"range_twice", absl::StatusCode::kInvalidArgument, "WRONG_RANGES", "ascending",
     [](v1::SubmitHeader* h) { *h->add_ranges() = h->ranges(0); }},
    {"range_empty", absl::StatusCode::kInvalidArgument, "WRONG_RANGES", "not empty",
     [](v1::SubmitHeader* h) { h->mutable_ranges(0)->set_end(0); }},
    {"too_few_bytes", absl::StatusCode::kInvalidArgument, "WRONG_SIZE", "payload_bytes is 10",
     [](v1::SubmitHeader* h) { h->set_payload_bytes(10); }},
    {"too_many_bytes", absl::StatusCode::kInvalidArgument, "WRONG_SIZE",
     "payload_bytes is 999999999", [](v1::SubmitHeader* h) { h->set_payload_bytes(999999999); }},
    {"tokens", absl::StatusCode::kInvalidArgument, "TOKENS_LIMIT", "tokens",
     [](v1::SubmitHeader* h) { h->set_tokens(kTokensMax + 1); }},
    {"steps", absl::StatusCode::kInvalidArgument, "WRONG_STEPS", "steps is 2",
     [](v1::SubmitHeader* h) { h->set_steps(2); }},
    {"digest", absl::StatusCode::kInvalidArgument, "WRONG_SIZE", "digest has 3 bytes",
     [](v1::SubmitHeader* h) { h->set_digest("abc"); }},
    {"reason", absl::StatusCode::kInvalidArgument, "WRONG_SIZE", "abstain_reason has 300 bytes",
     [](v1::SubmitHeader* h) { h->set_abstain_reason(std::string(300, 'x')); }},
};

class BadHeader : public BadSubmission, public ::testing::WithParamInterface<HeaderCase> {};

TEST_P(BadHeader, IsRefusedAndTheRoundGoesOn) {
  const HeaderCase& bad = GetParam();
  ExpectRefusal(HeaderRefusal(bad.spoil), bad.code, bad.reason, {bad.word});
  ExpectCommitWithoutB();
}

INSTANTIATE_TEST_SUITE_P(All, BadHeader, ::testing::ValuesIn(kHeaderCases),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_F(BadSubmission, ANotANumberInOneValue) {
  std::string piece = pieces_[0];
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(&piece[piece.size() - sizeof(nan)], &nan, sizeof(nan));
  const absl::Status status = PieceRefusal(Resealed(piece));
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("bias, chunk"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("finite"));
  ExpectCommitWithoutB();
}

TEST_F(BadSubmission, DamagedAndTruncatedPieces) {
  std::string damaged = pieces_[0];
  damaged[100] = static_cast<char>(damaged[100] ^ 1);
  EXPECT_TRUE(absl::IsInvalidArgument(PieceRefusal(damaged)));
  // What was refused in this round is out of it: the quorum is reached without.
  EXPECT_EQ(ReasonOf(PieceRefusal(pieces_[0])), "NOT_A_MEMBER");
  ExpectCommitWithoutB();
}

TEST_F(BadSubmission, APieceThatWasNotAnnounced) {
  v1::SubmitHeader header = b_.Header(3, {pieces_[1]});
  const auto view = OpenPiece(*grid_, pieces_[1]);
  header.mutable_ranges(0)->set_begin(view->first_chunk);
  header.mutable_ranges(0)->set_end(view->end_chunk);
  auto sink = coordinator_.host->BeginSubmit(header);
  ASSERT_TRUE(sink.ok()) << sink.status();
  ExpectRefusal((*sink)->AddPiece(pieces_[0]), absl::StatusCode::kInvalidArgument, "WRONG_RANGES",
                {"chunks [0, "});
  ExpectCommitWithoutB();
}

TEST_F(BadSubmission, AnEndWithoutAllPieces) {
  auto sink = coordinator_.host->BeginSubmit(b_.Header(3, pieces_));
  ASSERT_TRUE(sink.ok()) << sink.status();
  ASSERT_TRUE((*sink)->AddPiece(pieces_[0]).ok());
  v1::SubmitEnd end;
  end.set_digest(DigestOf(*grid_, pieces_));
  ExpectRefusal((*sink)->End(end).status(), absl::StatusCode::kInvalidArgument, "MISSING_RANGE",
                {"the first is", "chunk"});
  ExpectCommitWithoutB();
}

TEST_F(BadSubmission, AnotherDigest) {
  ExpectRefusal(b_.Submit(b_.Header(3, pieces_), pieces_, std::string(32, 'x')).status(),
                absl::StatusCode::kInvalidArgument, "DIGEST_MISMATCH",
                {HexPrefix(std::string(32, 'x')), HexPrefix(DigestOf(*grid_, pieces_))});
  ExpectCommitWithoutB();
}

TEST_F(BadSubmission, NoDigest) {
  ExpectRefusal(b_.Submit(b_.Header(3, pieces_), pieces_, "").status(),
                absl::StatusCode::kInvalidArgument, "WRONG_SIZE", {"digest has 0 bytes"});
  ExpectCommitWithoutB();
}

TEST_F(BadSubmission, PiecesAfterTheRoundHasClosed) {
  auto sink = coordinator_.host->BeginSubmit(b_.Header(3, pieces_));
  ASSERT_TRUE(sink.ok()) << sink.status();
  ASSERT_TRUE((*sink)->AddPiece(pieces_[0]).ok());
  ASSERT_TRUE(a_.SubmitRandom(3, 3).ok());
  coordinator_.Pass(5100, {&a_, &b_});  // grace
  b_.ExpectUpdate(3);
  ExpectRefusal((*sink)->AddPiece(pieces_[1]), absl::StatusCode::kAborted, "ROUND_CLOSED",
                {"round 3"});
}

TEST_F(BadSubmission, BadWatches) {
  v1::WatchUpdatesRequest request = b_.WatchRequest();
  request.set_stripes(2);
  ExpectRefusal(coordinator_.host->Watch(request).status(), absl::StatusCode::kInvalidArgument,
                "WRONG_STRIPE", {"0 of 2"});
  request = b_.WatchRequest();
  request.add_ranges()->set_end(1000000);
  ExpectRefusal(coordinator_.host->Watch(request).status(), absl::StatusCode::kInvalidArgument,
                "WRONG_RANGES", {"1000000"});
  request = b_.WatchRequest();
  request.set_last_update_sha256(std::string(32, 'x'));
  ExpectRefusal(coordinator_.host->Watch(request).status(), absl::StatusCode::kDataLoss,
                "HISTORY_DIFFERS", {"round 2"});
  request = b_.WatchRequest();
  request.set_incarnation(1);
  ExpectRefusal(coordinator_.host->Watch(request).status(), absl::StatusCode::kFailedPrecondition,
                kReasonIncarnationFenced, {"incarnation 1"});
  ExpectCommitWithB();  // on the watch it had
}

// R8: an upload that broke off can be gone on with while the lease lives, and takes no memory
// after.
TEST(BrokenUpload, WhatHadArrivedGoesWithTheLease) {
  TestCoordinator coordinator(TestSpec({"a", "b"}));
  FakeNode a(coordinator.host.get(), "a"), b(coordinator.host.get(), "b");
  a.JoinAndWatch();
  b.JoinAndWatch();
  const auto pieces = RandomContribution(*TestGrid(), 2);
  ASSERT_GT(pieces.size(), 1u);
  ASSERT_TRUE((*coordinator.host->BeginSubmit(b.Header(1, pieces)))->AddPiece(pieces[0]).ok());
  ASSERT_TRUE(a.SubmitRandom(1, 1).ok());
  const v1::WatchStart before = b.Watch();
  ASSERT_EQ(before.held_size(), 1);
  EXPECT_EQ(before.held(0).ranges_size(), 1);
  const auto b_holds = [&] { return coordinator.host->Look().nodes[1].trail.received_bytes; };
  EXPECT_EQ(b_holds(), pieces[0].size());
  coordinator.Pass(15000, {&a});
  EXPECT_EQ(b_holds(), 0u);
  ASSERT_TRUE(b.Join().ok());
  EXPECT_EQ(b.Watch().held_size(), 0);
  b.ExpectOpened(1);
  ASSERT_TRUE(b.SubmitRandom(1, 2).ok());
  a.ExpectOpened(1);
  EXPECT_EQ(a.ExpectUpdate(1).record.included_size(), 2);  // that of a stood
}

}  // namespace
}  // namespace isthmus
