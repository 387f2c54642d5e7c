// Submit: what is checked before a contribution counts.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/sha256.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "server/coordinator.h"
#include "spec/rounds.h"
#include "transport/errors.h"

namespace isthmus {
namespace {

// Whether a refusal means that this contribution will not come: what it says about itself is wrong.
// Others say "not now" or "not you", and cost the member nothing.
bool EndsContribution(const absl::Status& status) {
  return status.code() == absl::StatusCode::kInvalidArgument ||
         status.code() == absl::StatusCode::kAlreadyExists;
}

absl::Status Malformed(absl::string_view reason, const std::string& text) {
  return WithReason(absl::InvalidArgumentError(text), reason);
}

absl::Status Mismatch(absl::string_view reason, const std::string& text) {
  return WithReason(absl::FailedPreconditionError(text), reason);
}

}  // namespace

// Nothing more is to come: an abstention.
class Coordinator::EndedSubmission final : public SubmissionSink {
 public:
  explicit EndedSubmission(v1::SubmitResponse receipt) : receipt_(std::move(receipt)) {}
  absl::Status AddPiece(std::string) override {
    return Malformed("PIECE_AFTER_ABSTENTION", "a piece came after a header that abstains");
  }
  absl::StatusOr<v1::SubmitResponse> End(const v1::SubmitEnd&) override { return receipt_; }

 private:
  const v1::SubmitResponse receipt_;
};

// One call's pieces on their way to the aggregator. What it brought stays there for a resume.
class Coordinator::Submission final : public SubmissionSink {
 public:
  Submission(Coordinator* coordinator, v1::SubmitHeader header, ChunkRanges announced)
      : coordinator_(coordinator),
        header_(std::move(header)),
        announced_(std::move(announced)),
        model_(coordinator->model_),
        aggregator_(coordinator->aggregators_.at(header_.round())) {}

  absl::Status AddPiece(std::string bytes) override;
  absl::StatusOr<v1::SubmitResponse> End(const v1::SubmitEnd& end) override;

 private:
  absl::StatusOr<HeldPiece> Check(std::string bytes) const;
  absl::Status Keep(HeldPiece* piece, bool* has);
  absl::Status Take(HeldPiece piece);
  absl::StatusOr<std::string> Digest(const v1::SubmitEnd& end) const;
  absl::Status CheckRangesLocked() const;
  absl::Status StillWantedLocked() const;
  absl::Status Refuse(const absl::Status& why);
  absl::StatusOr<v1::SubmitResponse> Finish(const v1::SubmitEnd& end);

  Coordinator* const coordinator_;
  const v1::SubmitHeader header_;
  const ChunkRanges announced_;
  const ModelPtr model_;
  const std::shared_ptr<Aggregator> aggregator_;
};

absl::StatusOr<std::unique_ptr<SubmissionSink>> Coordinator::BeginSubmit(
    const v1::SubmitHeader& header) {
  const DeliverAfter deliver(this);
  std::lock_guard<std::mutex> lock(mutex_);
  ISTHMUS_RETURN_IF_ERROR(CheckCallerLocked(header.run(), header.node(), header.incarnation()));
  ISTHMUS_RETURN_IF_ERROR(CheckRoomLocked(header.node(), header.round()));
  ISTHMUS_RETURN_IF_ERROR(CheckRoundLocked(header.node(), header.round()));
  if (header.acknowledged_round() > machine_.committed_round()) {
    return CheckHistoryLocked(header.node(), header.acknowledged_round(), "");
  }
  StepLocked(NodeAcknowledged{header.node(), header.acknowledged_round()});
  // A deadline may have passed in that very step.
  ISTHMUS_RETURN_IF_ERROR(CheckRoundLocked(header.node(), header.round()));
  ISTHMUS_RETURN_IF_ERROR(CheckMemberLocked(header.node(), header.round()));
  ChunkRanges ranges;
  if (const absl::Status status = CheckHeaderLocked(header, &ranges); !status.ok()) {
    RefuseLocked(header.node(), header.round(), status);
    return status;
  }
  if (!header.abstain_reason().empty()) return AbstainLocked(header);
  const ContributionSize size = {header.tokens(), header.steps()};
  ISTHMUS_RETURN_IF_ERROR(
      aggregators_.at(header.round())
          ->Begin(header.node(), header.attempt(), IsOuter(spec_) ? size : ContributionSize()));
  return std::make_unique<Submission>(this, header, std::move(ranges));
}

std::unique_ptr<SubmissionSink> Coordinator::AbstainLocked(const v1::SubmitHeader& header) {
  LogInfo("node abstains", {{"node", header.node()},
                            {"round", absl::StrCat(header.round())},
                            {"why", header.abstain_reason()},
                            {"run", spec_.run()}});
  auto sink = std::make_unique<EndedSubmission>(ReceiptLocked(header.node(), header.round()));
  aggregators_.at(header.round())->Discard(header.node());
  NoteRefusalLocked(header.node(), header.round(), v1::NODE_OUTCOME_ABSTAINED,
                    header.abstain_reason());
  StepLocked(NodeAbstained{header.node(), OneLine(header.abstain_reason(), kReasonBytesMax),
                           header.round()});
  return sink;
}

absl::Status Coordinator::CheckRoundLocked(const std::string& node, uint64_t round) const {
  if (round == 0) return Malformed("ROUND_ZERO", "round is 0; rounds are numbered from 1");
  const uint64_t closed = std::max(machine_.committed_round(), machine_.committing_round());
  if (round <= closed) {
    return WithReason(absl::AbortedError(absl::StrCat("round ", round, " is closed, node '", node,
                                                      "' was late; wait for its update")),
                      "ROUND_CLOSED");
  }
  if (machine_.IsOpen(round)) return absl::OkStatus();
  const uint64_t newest = machine_.newest_round();
  return Mismatch(
      "ROUND_NOT_OPEN",
      absl::StrCat("round ", round, " is not open, ",
                   machine_.open_round() == 0 ? "none is" : absl::StrCat("round ", newest, " is"),
                   "; contributions are taken from the time the watch says so"));
}

absl::Status Coordinator::CheckMemberLocked(const std::string& node, uint64_t round) const {
  if (machine_.Admits(node, round)) return absl::OkStatus();
  if (machine_.PolicyOf(node) == NodePolicy::kDrain) {
    return Mismatch("NODE_DRAINING",
                    absl::StrCat("node '", node,
                                 "' is drained by an operator: it gets updates, "
                                 "and is a member of no round until it is admitted again"));
  }
  return Mismatch("NOT_A_MEMBER",
                  absl::StrCat("node '", node, "' is not a member of round ", round,
                               ", which goes on without it; it is one of a later round"));
}

// While a round waits for room on the disk, what later ones would need is not taken either. Who is
// held up by that is not late.
absl::Status Coordinator::CheckRoomLocked(const std::string& node, uint64_t round) {
  if (RoundWithoutRoomLocked() == 0) return absl::OkStatus();
  StepLocked(NodePushedBack{node, round});
  return WithRetryAfterMs(
      WithReason(absl::ResourceExhaustedError(
                     absl::StrCat(FullSentenceLocked(), ". Send round ", round, " again then")),
                 "STORE_FULL"),
      kRetryAfterMs);
}

absl::Status Coordinator::CheckHeaderLocked(const v1::SubmitHeader& header,
                                            ChunkRanges* ranges) const {
  if (header.role() != v1::ROLE_NODE) {
    return Malformed("WRONG_ROLE", absl::StrCat("role is ", v1::Role_Name(header.role()),
                                                "; a coordinator takes ROLE_NODE, ranks send "
                                                "to their node's agent"));
  }
  if (header.fragment() != 0) {
    return Malformed("UNKNOWN_FRAGMENT", absl::StrCat("fragment is ", header.fragment(),
                                                      "; this run has fragment 0 only"));
  }
  const uint64_t base_round = machine_.BaseOf(header.round());
  if (header.base_round() != base_round) {
    return Mismatch("WRONG_BASE_ROUND",
                    absl::StrCat("base_round is ", header.base_round(), "; round ", header.round(),
                                 " builds on round ", base_round));
  }
  if (header.attempt() == 0 || header.attempt() > header.incarnation()) {
    return Malformed("WRONG_ATTEMPT",
                     absl::StrCat("attempt is ", header.attempt(), "; it is 1 to the incarnation, ",
                                  header.incarnation()));
  }
  if (header.abstain_reason().size() > kReasonBytesMax) {
    return Malformed("WRONG_SIZE",
                     absl::StrCat("abstain_reason has ", header.abstain_reason().size(),
                                  " bytes; the limit is ", kReasonBytesMax));
  }
  return header.abstain_reason().empty() ? CheckSizesLocked(header, ranges) : absl::OkStatus();
}

absl::Status Coordinator::CheckSizesLocked(const v1::SubmitHeader& header,
                                           ChunkRanges* ranges) const {
  const v1::PayloadCodec layout = ContributionLayout(spec_.codec());
  if (header.codec() != layout) {
    return Mismatch("WRONG_CODEC",
                    absl::StrCat("codec is ", v1::PayloadCodec_Name(header.codec()),
                                 "; this run takes ", v1::PayloadCodec_Name(layout)));
  }
  uint64_t next = 0, chunks = 0;
  ByteRange body;
  for (const v1::ChunkRange& range : header.ranges()) {
    if (range.begin() < next || range.begin() >= range.end() ||
        range.end() > model_->grid->chunks()) {
      return Malformed(
          "WRONG_RANGES",
          absl::StrCat("ranges has [", range.begin(), ", ", range.end(), ") after ", next,
                       "; ranges are not empty, ascending and disjoint, and "
                       "the model has ",
                       model_->grid->chunks(), " chunks"));
    }
    next = range.end();
    chunks += range.end() - range.begin();
    const ByteRange bytes = model_->sizes.Bytes(range.begin(), range.end());
    body = {body.least + bytes.least, body.most + bytes.most};
    ranges->Add(range.begin(), range.end());
  }
  if (chunks == 0) {
    return Malformed("WRONG_RANGES", "ranges is empty; a contribution announces its chunks");
  }
  // Sizes follow from the ranges up to the number of pieces, at most one a chunk, and to what gaps
  // of indices take.
  const uint64_t least = body.least + ranges->list().size() * kPieceHeaderBytes;
  const uint64_t most = body.most + chunks * kPieceHeaderBytes;
  if (header.payload_bytes() < least || header.payload_bytes() > most) {
    return Malformed("WRONG_SIZE",
                     absl::StrCat("payload_bytes is ", header.payload_bytes(),
                                  "; pieces of these ranges have ", least, " to ", most, " bytes"));
  }
  if (header.tokens() > kTokensMax) {
    return Malformed("TOKENS_LIMIT",
                     absl::StrCat("tokens is ", header.tokens(), "; the limit is ", kTokensMax));
  }
  if (IsOuter(spec_)) {
    ISTHMUS_RETURN_IF_ERROR(CheckOuterHeader(header));
  } else if (header.steps() != 1) {
    return Malformed("WRONG_STEPS", absl::StrCat("steps is ", header.steps(),
                                                 "; this method sends after every step, so it is "
                                                 "1"));
  }
  if (!header.digest().empty() && header.digest().size() != kSha256Bytes) {
    return Malformed("WRONG_SIZE", absl::StrCat("digest has ", header.digest().size(),
                                                " bytes; it has ", kSha256Bytes));
  }
  return absl::OkStatus();
}

void Coordinator::RefuseLocked(const std::string& node, uint64_t round, const absl::Status& why) {
  LogWarning("contribution refused", {{"node", node},
                                      {"round", absl::StrCat(round)},
                                      {"reason", ReasonOf(why)},
                                      {"why", std::string(why.message())},
                                      {"run", spec_.run()}});
  NoteRefusalLocked(node, round, v1::NODE_OUTCOME_REFUSED, why.message());
  if (!machine_.Admits(node, round)) return;
  aggregators_.at(round)->Discard(node);
  StepLocked(ContributionRefused{node, std::string(why.message()), round});
}

v1::SubmitResponse Coordinator::ReceiptLocked(const std::string& node, uint64_t round) const {
  v1::SubmitResponse receipt;
  receipt.set_round(round);
  const auto open = aggregators_.find(round);
  const Contribution* held = open == aggregators_.end() ? nullptr : open->second->Find(node);
  if (held == nullptr) return receipt;
  receipt.set_attempt(held->attempt);
  receipt.set_complete(held->complete);
  receipt.set_digest(held->digest);
  return receipt;
}

absl::Status Coordinator::Submission::StillWantedLocked() const {
  ISTHMUS_RETURN_IF_ERROR(
      coordinator_->CheckCallerLocked(header_.run(), header_.node(), header_.incarnation()));
  ISTHMUS_RETURN_IF_ERROR(coordinator_->CheckRoundLocked(header_.node(), header_.round()));
  return coordinator_->CheckMemberLocked(header_.node(), header_.round());
}

absl::Status Coordinator::Submission::Refuse(const absl::Status& why) {
  if (!EndsContribution(why)) return why;
  std::lock_guard<std::mutex> lock(coordinator_->mutex_);
  if (StillWantedLocked().ok()) coordinator_->RefuseLocked(header_.node(), header_.round(), why);
  return why;
}

absl::Status Coordinator::Submission::AddPiece(std::string bytes) {
  const DeliverAfter deliver(coordinator_);
  absl::StatusOr<HeldPiece> piece = Check(std::move(bytes));  // without the lock: it takes long
  if (!piece.ok()) return Refuse(piece.status());
  bool has = false;
  const absl::Status kept = Keep(&*piece, &has);
  if (!kept.ok() || has) return kept;
  const absl::Status taken = Take(*std::move(piece));
  return taken.ok() ? taken : Refuse(taken);
}

// Where there is room for it, if it is not here already. Without the lock: it may go to a file.
absl::Status Coordinator::Submission::Keep(HeldPiece* piece, bool* has) {
  const std::string& node = header_.node();
  {
    std::lock_guard<std::mutex> lock(coordinator_->mutex_);
    ISTHMUS_RETURN_IF_ERROR(StillWantedLocked());
    *has = aggregator_->Has(node, header_.attempt(), *piece);
    if (*has) coordinator_->StepLocked(NodeHeard{node});
  }
  if (*has) return absl::OkStatus();
  const absl::Status kept = coordinator_->pieces_.Keep(node, header_.round(), piece);
  if (kept.ok()) return kept;
  std::lock_guard<std::mutex> lock(coordinator_->mutex_);
  coordinator_->StepLocked(NodeHeard{node});
  coordinator_->StepLocked(NodePushedBack{node, header_.round()});
  return kept;
}

absl::StatusOr<HeldPiece> Coordinator::Submission::Check(std::string bytes) const {
  ISTHMUS_ASSIGN_OR_RETURN(HeldPiece piece,
                           CheckContributionPiece(*model_->grid, std::move(bytes)));
  if (announced_.Contains(piece.first_chunk, piece.end_chunk)) return piece;
  return Malformed(
      "WRONG_RANGES",
      absl::StrCat("a piece holds chunks [", piece.first_chunk, ", ", piece.end_chunk, "), from ",
                   model_->grid->Describe(piece.first_chunk), " on; the header's ranges do not"));
}

absl::Status Coordinator::Submission::Take(HeldPiece piece) {
  std::lock_guard<std::mutex> lock(coordinator_->mutex_);
  ISTHMUS_RETURN_IF_ERROR(StillWantedLocked());
  ISTHMUS_RETURN_IF_ERROR(aggregator_->Add(header_.node(), header_.attempt(), std::move(piece)));
  coordinator_->StepLocked(NodeHeard{header_.node()});  // any valid piece renews the lease
  return absl::OkStatus();
}

absl::StatusOr<v1::SubmitResponse> Coordinator::Submission::End(const v1::SubmitEnd& end) {
  const DeliverAfter deliver(coordinator_);
  absl::StatusOr<v1::SubmitResponse> receipt = Finish(end);
  if (!receipt.ok()) return Refuse(receipt.status());
  return receipt;
}

absl::StatusOr<std::string> Coordinator::Submission::Digest(const v1::SubmitEnd& end) const {
  const std::string& digest = end.digest().empty() ? header_.digest() : end.digest();
  if (digest.size() != kSha256Bytes) {
    return Malformed("WRONG_SIZE", absl::StrCat("digest has ", digest.size(), " bytes; it has ",
                                                kSha256Bytes, ", in the header or in the end"));
  }
  if (!header_.digest().empty() && header_.digest() != digest) {
    return Malformed("DIGEST_MISMATCH",
                     absl::StrCat("the header says digest ", HexPrefix(header_.digest()),
                                  ", the end says ", HexPrefix(digest)));
  }
  return digest;
}

absl::Status Coordinator::Submission::CheckRangesLocked() const {
  const Contribution* held = aggregator_->Find(header_.node());
  if (held == nullptr || held->attempt != header_.attempt()) {
    return WithReason(
        absl::AbortedError(absl::StrCat("attempt ", header_.attempt(), " of node '", header_.node(),
                                        "' was discarded while it was being sent")),
        "ATTEMPT_DISCARDED");
  }
  for (const auto& [begin, end] : announced_.list()) {
    if (held->ranges.Contains(begin, end)) continue;
    uint64_t missing = begin;
    while (held->ranges.Contains(missing, missing + 1)) ++missing;
    return Malformed("MISSING_RANGE",
                     absl::StrCat("the submission ended, but announced chunks did not come: the "
                                  "first is ",
                                  model_->grid->Describe(missing)));
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::SubmitResponse> Coordinator::Submission::Finish(const v1::SubmitEnd& end) {
  const std::string& node = header_.node();
  ISTHMUS_ASSIGN_OR_RETURN(const std::string said, Digest(end));
  std::vector<HeldPiece> pieces;
  {
    std::lock_guard<std::mutex> lock(coordinator_->mutex_);
    ISTHMUS_RETURN_IF_ERROR(StillWantedLocked());
    const Contribution* held = aggregator_->Find(node);
    // One that is complete stands, of whatever attempt; its digest is the answer.
    if (held != nullptr && held->complete) {
      return coordinator_->ReceiptLocked(node, header_.round());
    }
    ISTHMUS_RETURN_IF_ERROR(CheckRangesLocked());
    if (!aggregator_->Covers(node)) return coordinator_->ReceiptLocked(node, header_.round());
    pieces = aggregator_->Pieces(node);
  }
  const std::string digest = ContributionDigest(*model_->grid, pieces);
  if (digest != said) {
    return Malformed("DIGEST_MISMATCH",
                     absl::StrCat("the sender says digest ", HexPrefix(said),
                                  ", what was received has ", HexPrefix(digest)));
  }
  std::lock_guard<std::mutex> lock(coordinator_->mutex_);
  ISTHMUS_RETURN_IF_ERROR(StillWantedLocked());
  const Contribution* held = aggregator_->Find(node);
  if (held == nullptr || !held->complete) {  // else another call of this node was faster
    ISTHMUS_RETURN_IF_ERROR(CheckRangesLocked());
    aggregator_->MarkComplete(node, digest);
    const v1::SubmitResponse receipt = coordinator_->ReceiptLocked(node, header_.round());
    coordinator_->history_.Completed(header_.round(), node, coordinator_->NowLocked());
    coordinator_->StepLocked(ContributionComplete{node, digest, header_.round()});
    return receipt;
  }
  return coordinator_->ReceiptLocked(node, header_.round());
}

}  // namespace isthmus
