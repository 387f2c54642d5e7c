// Defaults and checks of the stages: what each reads, its limits, and which go together.
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/status_macros.h"
#include "kernels/feedback.h"
#include "spec/refusals.h"
#include "spec/rounds.h"
#include "spec/rows.h"
#include "spec/run_spec.h"
#include "spec/stages.h"

namespace isthmus {
namespace {

// An error of a kernel's check, which names a field without its message.
absl::Status Within(absl::string_view message, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(message, ": ", status.message()));
}

// What each outer step reads of its message.
struct OuterReads {
  bool lr = false, momentum = false, slow = false, betas = false, sign = false, eps = false,
       decay = false;
};

OuterReads ReadsOf(v1::OuterKind kind) {
  OuterReads reads;
  reads.lr = kind == v1::OUTER_KIND_SGD || kind == v1::OUTER_KIND_MOMENTUM ||
             kind == v1::OUTER_KIND_NESTEROV || kind == v1::OUTER_KIND_ADAMW;
  reads.momentum = kind == v1::OUTER_KIND_MOMENTUM || kind == v1::OUTER_KIND_NESTEROV;
  reads.slow = kind == v1::OUTER_KIND_SLOWMO;
  reads.sign = kind == v1::OUTER_KIND_SIGN_MOMENTUM;
  reads.eps = kind == v1::OUTER_KIND_ADAMW;
  reads.betas = reads.sign || reads.eps;
  reads.decay = kind != v1::OUTER_KIND_ASSIGN && !reads.slow;
  return reads;
}

bool IsRandom(v1::OuterSign sign) {
  return sign == v1::OUTER_SIGN_RANDOM_TWO_POINT || sign == v1::OUTER_SIGN_RANDOM_THREE_POINT;
}

void FillOuterStep(v1::OuterSpec* outer) {
  const OuterReads reads = ReadsOf(outer->kind());
  v1::OuterSpec bare;
  bare.set_kind(outer->kind());
  const OuterSettings usual = OuterSettingsOf(bare, 0);
  if (reads.lr && !outer->has_lr()) outer->set_lr(usual.lr);
  if (reads.momentum && !outer->has_momentum()) outer->set_momentum(usual.momentum);
  if (reads.slow && !outer->has_alpha()) outer->set_alpha(usual.alpha);
  if (reads.slow && !outer->has_beta()) outer->set_beta(usual.beta);
  if (reads.betas && !outer->has_beta1()) outer->set_beta1(usual.beta1);
  if (reads.betas && !outer->has_beta2()) outer->set_beta2(usual.beta2);
  if (reads.eps && !outer->has_eps()) outer->set_eps(usual.eps);
  if (reads.decay && !outer->has_weight_decay()) outer->set_weight_decay(usual.weight_decay);
  if (!reads.sign) return;
  if (!outer->has_eta()) outer->set_eta(usual.eta);
  if (!outer->has_divide_by_gamma()) outer->set_divide_by_gamma(true);
  if (outer->sign() == v1::OUTER_SIGN_UNSPECIFIED) outer->set_sign(v1::OUTER_SIGN_EXACT);
  if (IsRandom(outer->sign()) && !outer->has_bound()) outer->set_bound(0);
}

// Of one contribution: what its steps may have read.
uint64_t TokensMax(const v1::RunSpec& spec) {
  if (!spec.has_model() || !spec.has_data()) return kTokensMax;
  const double most = static_cast<double>(spec.data().sequences_per_node()) *
                      spec.model().context() * static_cast<double>(spec.aggregate().steps_max());
  return most < static_cast<double>(kTokensMax) ? static_cast<uint64_t>(most) : kTokensMax;
}

void FillAggregate(v1::RunSpec* spec) {
  v1::AggregateSpec* aggregate = spec->mutable_aggregate();
  if (aggregate->kind() == v1::AGGREGATE_KIND_UNSPECIFIED) {
    aggregate->set_kind(v1::AGGREGATE_KIND_MEAN);
  }
  if (aggregate->kind() == v1::AGGREGATE_KIND_TRIMMED_MEAN && aggregate->trim() == 0) {
    aggregate->set_trim(1);
  }
  if (aggregate->kind() == v1::AGGREGATE_KIND_WEIGHTED_MEAN) {
    if (aggregate->weight() == v1::CONTRIBUTION_WEIGHT_UNSPECIFIED) {
      aggregate->set_weight(v1::CONTRIBUTION_WEIGHT_TOKENS);
    }
    if (!aggregate->has_weight_max_share()) aggregate->set_weight_max_share(1);
  }
  const bool carries = spec->source() == v1::SOURCE_PARAM_DELTA && !spec->codec().has_feedback();
  if (carries && !aggregate->has_carry_rounds()) aggregate->set_carry_rounds(kCarryRoundsDefault);
  if (aggregate->steps_max() == 0) {
    aggregate->set_steps_max(StepsOfRoundMax(*spec) * (1 + aggregate->carry_rounds()));
  }
  if (aggregate->tokens_max() == 0) aggregate->set_tokens_max(TokensMax(*spec));
}

absl::Status CheckSchedule(const v1::RunSpec& spec) {
  const v1::ScheduleSpec& schedule = spec.schedule();
  const auto check = [](absl::string_view field, uint64_t steps) {
    if (steps >= 1 && steps <= kLocalStepsMax) return absl::OkStatus();
    return Refuse(field, steps,
                  absl::StrCat("give the local steps of a round, 1 to ", kLocalStepsMax));
  };
  ISTHMUS_RETURN_IF_ERROR(check("schedule.local_steps", schedule.local_steps()));
  if (schedule.switch_step() > 0) {
    ISTHMUS_RETURN_IF_ERROR(check("schedule.local_steps_after", schedule.local_steps_after()));
  } else if (schedule.local_steps_after() > 0) {
    return Refuse("schedule.local_steps_after", schedule.local_steps_after(),
                  "it wants schedule.switch_step, the step from which on it holds");
  }
  if (schedule.switch_step() > spec.steps()) {
    return Refuse("schedule.switch_step", schedule.switch_step(),
                  absl::StrCat("give at most steps, ", spec.steps()));
  }
  if (spec.source() != v1::SOURCE_UPDATE_SIGN || StepsOfRoundMax(spec) == 1) {
    return absl::OkStatus();
  }
  return Refuse("schedule.local_steps", schedule.local_steps(),
                "with source SOURCE_UPDATE_SIGN every step is a round; give 1");
}

// Fields of methods of every step.
absl::Status CheckOuterAlone(const v1::RunSpec& spec) {
  if (spec.allow_drift()) {
    return Refuse("allow_drift", "true", "an outer optimizer keeps the nodes equal; leave it out");
  }
  const uint32_t every = spec.schedule().every(), skip = spec.schedule().skip();
  if (every == 0 && skip == 0) return absl::OkStatus();
  return Refuse(every > 0 ? "schedule.every" : "schedule.skip", every > 0 ? every : skip,
                "it is that of methods of every step; with an outer optimizer give "
                "schedule.local_steps");
}

// Fields that are given and that the rule does not read, by comma; empty: there are none.
std::string IdleFields(const v1::OuterSpec& outer, const OuterReads& reads) {
  const std::pair<absl::string_view, bool> idle[] = {
      {"outer.lr", outer.has_lr() && !reads.lr},
      {"outer.momentum", outer.has_momentum() && !reads.momentum},
      {"outer.alpha", outer.has_alpha() && !reads.slow},
      {"outer.beta", outer.has_beta() && !reads.slow},
      {"outer.beta1", outer.has_beta1() && !reads.betas},
      {"outer.beta2", outer.has_beta2() && !reads.betas},
      {"outer.eta", outer.has_eta() && !reads.sign},
      {"outer.eps", outer.has_eps() && !reads.eps},
      {"outer.weight_decay", outer.has_weight_decay() && !reads.decay},
      {"outer.divide_by_gamma", outer.has_divide_by_gamma() && !reads.sign},
      {"outer.sign", outer.sign() != v1::OUTER_SIGN_UNSPECIFIED && !reads.sign},
      {"outer.bound", outer.has_bound() && !(reads.sign && IsRandom(outer.sign()))},
  };
  std::string fields;
  for (const auto& [field, is_given] : idle) {
    if (is_given) absl::StrAppend(&fields, fields.empty() ? "" : ", ", field);
  }
  return fields;
}

// With the rates that rounds step by: the largest, and those of the first round and the last, of
// which one is the smallest.
absl::Status CheckOuterRates(const v1::RunSpec& spec) {
  if (!(spec.optimizer().lr() > 0)) return absl::OkStatus();  // refused as what it is
  const float first = RoundLearningRate(spec, 1), last = RoundLearningRate(spec, Rounds(spec));
  for (const float gamma : {spec.optimizer().lr(), first, last}) {
    ISTHMUS_RETURN_IF_ERROR(Within(
        absl::StrCat("outer, where the learning rate is ", gamma),
        CheckOuterSettings(OuterSettingsOf(spec.outer(), gamma), static_cast<double>(gamma))));
  }
  return absl::OkStatus();
}

absl::Status CheckOuterStep(const v1::RunSpec& spec) {
  const v1::OuterSpec& outer = spec.outer();
  if (!v1::OuterKind_IsValid(outer.kind()) || outer.kind() == v1::OUTER_KIND_UNSPECIFIED) {
    return Refuse("outer.kind", static_cast<int>(outer.kind()),
                  "give OUTER_KIND_NESTEROV or another one of stages.proto");
  }
  const OuterReads reads = ReadsOf(outer.kind());
  if (!v1::OuterSign_IsValid(outer.sign())) {
    return Refuse("outer.sign", static_cast<int>(outer.sign()),
                  "give OUTER_SIGN_EXACT or another one of stages.proto");
  }
  const bool random = reads.sign && IsRandom(outer.sign());
  if (const std::string idle = IdleFields(outer, reads); !idle.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        idle, absl::StrContains(idle, ',') ? " have" : " has", " no effect with outer.kind ",
        v1::OuterKind_Name(outer.kind()),
        reads.sign ? absl::StrCat(" and outer.sign ", v1::OuterSign_Name(outer.sign())) : "",
        "; leave that out"));
  }
  if (outer.has_bound() && !(outer.bound() >= 0)) {
    return Refuse("outer.bound", outer.bound(), "give a number above 0, or 0 for the largest |c|");
  }
  if (random && outer.bound() == 0 && spec.placement() == v1::PLACEMENT_REPLICATED) {
    return Refuse("outer.bound", 0,
                  "the largest |c| of a tensor is known to no single rank; give a bound, or "
                  "PLACEMENT_HOSTED");
  }
  return CheckOuterRates(spec);
}

absl::Status CheckAggregateStage(const v1::RunSpec& spec) {
  const v1::AggregateSpec& aggregate = spec.aggregate();
  if (!v1::AggregateKind_IsValid(aggregate.kind())) {
    return Refuse("aggregate.kind", static_cast<int>(aggregate.kind()),
                  "give AGGREGATE_KIND_MEAN or another one of stages.proto");
  }
  if (!v1::ContributionWeight_IsValid(aggregate.weight())) {
    return Refuse("aggregate.weight", static_cast<int>(aggregate.weight()),
                  "give CONTRIBUTION_WEIGHT_TOKENS or another one of stages.proto");
  }
  const std::string kind = v1::AggregateKind_Name(aggregate.kind());
  const bool trims = aggregate.kind() == v1::AGGREGATE_KIND_TRIMMED_MEAN;
  const bool weighs = aggregate.kind() == v1::AGGREGATE_KIND_WEIGHTED_MEAN;
  if (aggregate.trim() > 0 && !trims) {
    return Refuse("aggregate.trim", aggregate.trim(), absl::StrCat(kind, " does not trim"));
  }
  if (!weighs && (aggregate.has_weight_max_share() || aggregate.weight() != 0)) {
    return Refuse("aggregate.kind", kind,
                  "aggregate.weight and aggregate.weight_max_share go with "
                  "AGGREGATE_KIND_WEIGHTED_MEAN only");
  }
  ISTHMUS_RETURN_IF_ERROR(
      Within("aggregate", CheckAggregate(AggregateSettingsOf(aggregate), EffectiveQuorum(spec))));
  if (aggregate.steps_max() > kStepsMax || aggregate.steps_max() < StepsOfRoundMax(spec)) {
    return Refuse("aggregate.steps_max", aggregate.steps_max(),
                  absl::StrCat("a round has up to ", StepsOfRoundMax(spec),
                               " steps; give that or more, at most ", kStepsMax));
  }
  // What a node of this project reads in a round; 0 where the spec does not say.
  const uint64_t read = uint64_t{spec.data().sequences_per_node()} * spec.model().context();
  const double least = static_cast<double>(read) * static_cast<double>(StepsOfRoundMax(spec));
  if (aggregate.tokens_max() == 0 || aggregate.tokens_max() > kTokensMax ||
      static_cast<double>(aggregate.tokens_max()) < std::min<double>(least, kTokensMax)) {
    return Refuse("aggregate.tokens_max", aggregate.tokens_max(),
                  absl::StrCat("a round has up to ", least,
                               " tokens of a node; give that or more, at most ", kTokensMax));
  }
  if (aggregate.carry_rounds() > kCarryRoundsMax) {
    return Refuse("aggregate.carry_rounds", aggregate.carry_rounds(),
                  absl::StrCat("give at most ", kCarryRoundsMax));
  }
  if (!aggregate.has_carry_rounds() || aggregate.carry_rounds() == 0) return absl::OkStatus();
  if (spec.codec().has_feedback() || spec.source() != v1::SOURCE_PARAM_DELTA) {
    return Refuse("aggregate.carry_rounds", aggregate.carry_rounds(),
                  "what was left out is carried by codec.feedback, or is no delta; leave it out");
  }
  return absl::OkStatus();
}

bool AreVotes(const v1::CodecSpec& codec) {
  return codec.kind() == v1::CODEC_KIND_NUMBERS &&
         (codec.numbers().format() == v1::NUMBER_FORMAT_SIGN1 ||
          codec.numbers().format() == v1::NUMBER_FORMAT_TERNARY);
}

absl::Status CheckSource(const v1::RunSpec& spec) {
  const v1::CodecSpec& codec = spec.codec();
  if (spec.source() == v1::SOURCE_UPDATE_SIGN) {
    if (!AreVotes(codec)) {
      return Refuse("source", "SOURCE_UPDATE_SIGN",
                    "its votes are signs; give codec.kind CODEC_KIND_NUMBERS with "
                    "codec.numbers.format NUMBER_FORMAT_SIGN1 or NUMBER_FORMAT_TERNARY");
    }
    if (codec.has_feedback() || spec.optimizer().base() != v1::BASE_OPTIMIZER_LION ||
        spec.outer().kind() != v1::OUTER_KIND_LION) {
      return Refuse("source", "SOURCE_UPDATE_SIGN",
                    "it goes with optimizer.base BASE_OPTIMIZER_LION and outer.kind "
                    "OUTER_KIND_LION, without codec.feedback");
    }
    if (spec.optimizer().weight_decay() == 0) return absl::OkStatus();
    return Refuse("optimizer.weight_decay", spec.optimizer().weight_decay(),
                  "with source SOURCE_UPDATE_SIGN the outer step decays; give outer.weight_decay");
  }
  if (spec.source() != v1::SOURCE_PARAM_DELTA) {
    return Refuse("source", static_cast<int>(spec.source()),
                  "give SOURCE_PARAM_DELTA or SOURCE_UPDATE_SIGN");
  }
  if (spec.outer().kind() == v1::OUTER_KIND_LION) {
    return Refuse("outer.kind", "OUTER_KIND_LION",
                  "it is the step of votes; give source SOURCE_UPDATE_SIGN");
  }
  return absl::OkStatus();
}

// Which replies are exact, and who can keep the error of the others.
absl::Status CheckReply(const v1::RunSpec& spec) {
  const v1::NumberFormat format = spec.codec().reply().format();
  const std::string name = v1::NumberFormat_Name(format);
  const bool hosted = spec.placement() == v1::PLACEMENT_HOSTED;
  if (spec.placement() != v1::PLACEMENT_REPLICATED && !hosted) {
    return Refuse("placement", static_cast<int>(spec.placement()),
                  "give PLACEMENT_REPLICATED or PLACEMENT_HOSTED");
  }
  if (format == v1::NUMBER_FORMAT_F32) {
    if (spec.codec().reply().hadamard() == 0) return absl::OkStatus();
    return Refuse("codec.reply.hadamard", spec.codec().reply().hadamard(),
                  "NUMBER_FORMAT_F32 is exact; leave it out");
  }
  const v1::AggregateKind aggregate = spec.aggregate().kind();
  const bool votes =
      aggregate == v1::AGGREGATE_KIND_MAJORITY || aggregate == v1::AGGREGATE_KIND_SIGN_OF_MEAN;
  const v1::OuterKind outer = spec.outer().kind();
  if (format == v1::NUMBER_FORMAT_TERNARY) {
    const bool signs = hosted ? outer == v1::OUTER_KIND_SIGN_MOMENTUM ||
                                    outer == v1::OUTER_KIND_SIGN_SGD ||
                                    (outer == v1::OUTER_KIND_LION && votes)
                              : votes;
    if (signs && spec.codec().reply().hadamard() == 0) return absl::OkStatus();
    return Refuse("codec.reply.format", name,
                  hosted ? "it goes with outer.kind OUTER_KIND_SIGN_MOMENTUM or "
                           "OUTER_KIND_SIGN_SGD, or with OUTER_KIND_LION and votes, without "
                           "hadamard; give NUMBER_FORMAT_F32 or NUMBER_FORMAT_INT8"
                         : "with PLACEMENT_REPLICATED it goes with aggregate.kind "
                           "AGGREGATE_KIND_MAJORITY or AGGREGATE_KIND_SIGN_OF_MEAN, without "
                           "hadamard; give NUMBER_FORMAT_F32 or PLACEMENT_HOSTED");
  }
  if (!hosted) {
    return Refuse("codec.reply.format", name,
                  "its error is kept by the coordinator; give PLACEMENT_HOSTED or "
                  "NUMBER_FORMAT_F32");
  }
  if (format == v1::NUMBER_FORMAT_SIGN1) {
    return Refuse("codec.reply.format", name,
                  "a reply without magnitudes moves every parameter by 1; give NUMBER_FORMAT_INT4, "
                  "or NUMBER_FORMAT_TERNARY with an outer step that takes signs");
  }
  if (spec.codec().kind() != v1::CODEC_KIND_DCT) return absl::OkStatus();
  return Refuse("codec.reply.format", name,
                "with codec.kind CODEC_KIND_DCT chunks are tiles, which scale groups and rotations "
                "do not cross well; give NUMBER_FORMAT_F32");
}

absl::Status CheckOuterCodec(const v1::RunSpec& spec) {
  const v1::CodecSpec& codec = spec.codec();
  if (codec.kind() != v1::CODEC_KIND_NUMBERS && codec.kind() != v1::CODEC_KIND_TOPK &&
      codec.kind() != v1::CODEC_KIND_DCT) {
    return Refuse("codec.kind", v1::CodecKind_Name(codec.kind()),
                  "with an outer optimizer give CODEC_KIND_NUMBERS, CODEC_KIND_TOPK or "
                  "CODEC_KIND_DCT, or a preset that has one");
  }
  absl::Status format, votes;
  if (codec.kind() == v1::CODEC_KIND_NUMBERS) {
    format = Within("aggregate.kind and codec.numbers.format",
                    CheckAggregateFormat(AggregateSettingsOf(spec.aggregate()).kind,
                                         NumberSettingsOf(codec.numbers()).format));
    if (AreVotes(codec) && codec.has_feedback()) {
      votes = Refuse("codec.numbers.format", v1::NumberFormat_Name(codec.numbers().format()),
                     "votes have no magnitude that feedback could take off; leave codec.feedback "
                     "out");
    }
  } else if (spec.aggregate().kind() == v1::AGGREGATE_KIND_MAJORITY) {
    format = Refuse("aggregate.kind", "AGGREGATE_KIND_MAJORITY",
                    "it counts votes; give codec.numbers.format NUMBER_FORMAT_SIGN1 or "
                    "NUMBER_FORMAT_TERNARY");
  }
  return Together({format, votes, CheckReply(spec)});
}

absl::Status CheckNumbers(absl::string_view message, const v1::NumbersSpec& numbers) {
  if (!v1::NumberFormat_IsValid(numbers.format()) ||
      numbers.format() == v1::NUMBER_FORMAT_UNSPECIFIED) {
    return Refuse(absl::StrCat(message, ".format"), static_cast<int>(numbers.format()),
                  absl::StrCat("give ", AnyOf({v1::NUMBER_FORMAT_F32, v1::NUMBER_FORMAT_BF16,
                                               v1::NUMBER_FORMAT_F16, v1::NUMBER_FORMAT_INT8,
                                               v1::NUMBER_FORMAT_INT4, v1::NUMBER_FORMAT_SIGN1,
                                               v1::NUMBER_FORMAT_TERNARY})));
  }
  const bool has_groups =
      numbers.format() == v1::NUMBER_FORMAT_INT8 || numbers.format() == v1::NUMBER_FORMAT_INT4;
  if (!has_groups && numbers.group() > 0) {
    return Refuse(absl::StrCat(message, ".group"), numbers.group(),
                  absl::StrCat(v1::NumberFormat_Name(numbers.format()), " has no groups"));
  }
  if (has_groups && (numbers.group() == 0 || kFlatChunkElements % numbers.group() != 0)) {
    return Refuse(absl::StrCat(message, ".group"), numbers.group(),
                  absl::StrCat("give a divisor of ", kFlatChunkElements));
  }
  return Within(message, CheckNumberSettings(NumberSettingsOf(numbers)));
}

// Of methods of every step.
absl::Status CheckExchanges(const v1::RunSpec& spec) {
  const v1::ScheduleSpec& schedule = spec.schedule();
  if (schedule.local_steps() > 0 || schedule.switch_step() > 0 ||
      schedule.local_steps_after() > 0) {
    return absl::InvalidArgumentError(
        "schedule.local_steps, switch_step and local_steps_after go with an outer optimizer; give "
        "outer, or a preset that has one, or schedule.every");
  }
  if (schedule.every() > kExchangeEveryMax) {
    return Refuse("schedule.every", schedule.every(),
                  absl::StrCat("nodes exchange every so many steps, 1 to ", kExchangeEveryMax));
  }
  if (schedule.skip() == 1 || schedule.skip() > kExchangeEveryMax) {
    return Refuse("schedule.skip", schedule.skip(),
                  absl::StrCat("steps that it divides have no exchange; give 2 to ",
                               kExchangeEveryMax, ", or 0 for none"));
  }
  if (!HasStepsAlone(spec)) return absl::OkStatus();
  if (schedule.skip() > 0 && std::max(1u, schedule.every()) % schedule.skip() == 0) {
    return Refuse("schedule.skip", schedule.skip(),
                  absl::StrCat("it divides schedule.every, ", schedule.every(),
                               ", so that no step would exchange; give another one"));
  }
  if (spec.codec().kind() == v1::CODEC_KIND_NONE) {
    return Refuse(schedule.every() > 1 ? "schedule.every" : "schedule.skip",
                  schedule.every() > 1 ? schedule.every() : schedule.skip(),
                  "with codec.kind CODEC_KIND_NONE no step exchanges; leave it out");
  }
  return absl::OkStatus();
}

}  // namespace

void FillNumbers(v1::NumbersSpec* numbers) {
  if (numbers->format() == v1::NUMBER_FORMAT_UNSPECIFIED) {
    numbers->set_format(v1::NUMBER_FORMAT_F32);
  }
  const bool has_groups =
      numbers->format() == v1::NUMBER_FORMAT_INT8 || numbers->format() == v1::NUMBER_FORMAT_INT4;
  if (has_groups && numbers->group() == 0) numbers->set_group(NumberSettings().group);
}

absl::Status CheckStageCodec(const v1::CodecSpec& codec) {
  if (codec.kind() == v1::CODEC_KIND_NUMBERS || SendsRows(codec)) {
    ISTHMUS_RETURN_IF_ERROR(CheckNumbers("codec.numbers", codec.numbers()));
  }
  if (codec.kind() == v1::CODEC_KIND_TOPK) {
    if (codec.topk_chunk() == 0 || kFlatChunkElements % codec.topk_chunk() != 0) {
      return Refuse("codec.topk_chunk", codec.topk_chunk(),
                    absl::StrCat("give a divisor of ", kFlatChunkElements));
    }
    if (codec.topk_k() == 0 || codec.topk_k() > codec.topk_chunk()) {
      return Refuse("codec.topk_k", codec.topk_k(),
                    absl::StrCat("give 1 to codec.topk_chunk, ", codec.topk_chunk()));
    }
  }
  if (codec.has_reply()) ISTHMUS_RETURN_IF_ERROR(CheckNumbers("codec.reply", codec.reply()));
  if (!codec.has_feedback()) return absl::OkStatus();
  return Within("codec.feedback",
                CheckFeedback({codec.feedback().decay(), codec.feedback().gain()}));
}

void FillStages(v1::RunSpec* spec) {
  if (spec->source() == v1::SOURCE_UNSPECIFIED) spec->set_source(v1::SOURCE_PARAM_DELTA);
  v1::CodecSpec* codec = spec->mutable_codec();
  if (codec->kind() == v1::CODEC_KIND_UNSPECIFIED) codec->set_kind(v1::CODEC_KIND_NUMBERS);
  FillNumbers(codec->mutable_reply());
  if (spec->placement() == v1::PLACEMENT_UNSPECIFIED) {
    spec->set_placement(spec->source() == v1::SOURCE_PARAM_DELTA ? v1::PLACEMENT_HOSTED
                                                                 : v1::PLACEMENT_REPLICATED);
  }
  if (spec->optimizer().base() == v1::BASE_OPTIMIZER_UNSPECIFIED) {
    spec->mutable_optimizer()->set_base(v1::BASE_OPTIMIZER_ADAMW);
  }
  FillAggregate(spec);
  FillOuterStep(spec->mutable_outer());
  // The coordinator has to get x from somebody.
  if (IsHosted(*spec) && spec->snapshot().start_node().empty() && spec->nodes_size() > 0) {
    spec->mutable_snapshot()->set_start_node(spec->nodes(0).name());
  }
}

absl::Status CheckStages(const v1::RunSpec& spec) {
  if (!IsOuter(spec)) {
    ISTHMUS_RETURN_IF_ERROR(CheckExchanges(spec));
    const std::pair<absl::string_view, bool> idle[] = {
        {"source", spec.source() != v1::SOURCE_UNSPECIFIED},
        {"aggregate", spec.has_aggregate()},
        {"placement", spec.placement() != v1::PLACEMENT_UNSPECIFIED},
        {"codec.feedback", spec.codec().has_feedback()},
        {"codec.reply", spec.codec().has_reply()},
        {"codec.kind NUMBERS, TOPK or DCT",
         spec.codec().kind() > v1::CODEC_KIND_NONE && !SendsRows(spec.codec())},
        {"optimizer.base BASE_OPTIMIZER_LION", spec.optimizer().base() == v1::BASE_OPTIMIZER_LION},
    };
    for (const auto& [field, is_given] : idle) {
      if (!is_given) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          field, " goes with an outer optimizer; give outer, or a preset that has one"));
    }
    return absl::OkStatus();
  }
  const absl::Status schedule = CheckSchedule(spec);
  // Limits of the aggregate follow from it.
  return Together({CheckOuterAlone(spec), schedule, CheckSource(spec),
                   schedule.ok() ? CheckAggregateStage(spec) : absl::OkStatus(),
                   CheckOuterCodec(spec), CheckOuterStep(spec)});
}

}  // namespace isthmus
