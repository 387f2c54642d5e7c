// Rounds with local steps: what is checked of a contribution, and what becomes of all of them.
#include <cstring>
#include <utility>

#include "absl/base/casts.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/coordinator.h"
#include "server/outer_fold.h"
#include "server/reply.h"
#include "spec/rounds.h"
#include "spec/stages.h"
#include "transport/errors.h"

namespace isthmus {
namespace {

absl::Status Refused(absl::string_view reason, const std::string& text) {
  return WithReason(absl::InvalidArgumentError(text), reason);
}

}  // namespace

// Where nodes take steps of their own, how many, of what and how large decides what a contribution
// counts for.
absl::Status Coordinator::CheckOuterHeader(const v1::SubmitHeader& header) const {
  const uint32_t lr_bits = LearningRateBits(header.round());
  if (header.lr_bits() != lr_bits) {
    return Refused(
        "WRONG_LEARNING_RATE",
        absl::StrCat("lr_bits is ", header.lr_bits(), " (", absl::bit_cast<float>(header.lr_bits()),
                     "); the learning rate of round ", header.round(), " is ", lr_bits, " (",
                     absl::bit_cast<float>(lr_bits), "), as its opening said"));
  }
  const v1::RunSpec& spec = revisions_.SpecOf(header.round());
  const ContributionSize limits = revisions_.SizeLimitsOf(header.round());
  if (header.steps() == 0 || header.steps() > limits.steps) {
    return Refused("WRONG_STEPS", absl::StrCat("steps is ", header.steps(),
                                               "; it is 1 to aggregate.steps_max, ", limits.steps));
  }
  if (header.tokens() > limits.tokens) {
    return Refused("TOKENS_LIMIT", absl::StrCat("tokens is ", header.tokens(),
                                                "; it is at most "
                                                "aggregate.tokens_max, ",
                                                limits.tokens));
  }
  if (spec.aggregate().kind() != v1::AGGREGATE_KIND_WEIGHTED_MEAN) return absl::OkStatus();
  const absl::Status weight =
      ContributionWeight(WeightKindOf(spec.aggregate()), {header.tokens(), header.steps()}, limits)
          .status();
  return weight.ok() ? weight : WithReason(weight, "WRONG_WEIGHT");
}

// Under hosted_mutex_ where the model is hosted.
absl::StatusOr<CodedUpdate> Coordinator::MakeOuterPieces(const CommitJob& job, float* norm,
                                                         StoreBatch* batch) {
  const Grid& grid = *job.model->grid;
  std::vector<OuterContribution> contributions;
  for (size_t i = 0; i < job.contributions.size(); ++i) {
    contributions.push_back({job.contributions[i], job.contribution_sizes[i]});
  }
  const uint64_t round = job.round.round;
  const v1::RunSpec& spec = revisions_.SpecOf(round);
  OuterFoldSettings settings = OuterFoldSettingsOf(spec);
  settings.limits = revisions_.SizeLimitsOf(round);
  if (IsHosted(spec_)) {
    ISTHMUS_ASSIGN_OR_RETURN(OuterAggregate aggregate,
                             FoldOuter(settings, grid, contributions, fold_threads_));
    *norm = aggregate.norm;
    const float gamma = absl::bit_cast<float>(LearningRateBits(round));
    ISTHMUS_ASSIGN_OR_RETURN(CodedUpdate update,
                             hosted_->Step(HostedStepOf(spec, round, gamma), aggregate.g));
    batch->aggregate = std::make_shared<const std::vector<float>>(std::move(aggregate.g));
    return update;
  }
  ISTHMUS_ASSIGN_OR_RETURN(const BlockFold fold,
                           MakeBlockFold(settings, grid, contributions, fold_threads_));
  const NumberSettings reply = NumberSettingsOf(spec.codec().reply());
  std::vector<double> squares(grid.blocks().size());
  CodedUpdate update = WriteReply(grid, fold_threads_, [&](size_t b, CodedBlock* out) {
    std::vector<float> g(grid.blocks()[b].elements);
    fold(b, absl::MakeSpan(g));
    squares[b] = SquaresOf(g);
    CodeReplyBlock(grid, grid.blocks()[b], reply, g, out);
  });
  *norm = NormOf(squares);
  return update;
}

}  // namespace isthmus
