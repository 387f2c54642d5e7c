// The checks of a complete RunSpec: each refusal names field, value and limit and says what to do.
#include <algorithm>
#include <cmath>
#include <unordered_set>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "base/limits.h"
#include "base/sha256.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "spec/presets.h"
#include "spec/refusals.h"
#include "spec/rounds.h"
#include "spec/rows.h"
#include "spec/run_spec.h"
#include "spec/stages.h"

namespace isthmus {
namespace {

// `meaning` begins the advice: "give the number of rounds".
absl::Status CheckRange(absl::string_view field, uint64_t value, uint64_t least, uint64_t most,
                        absl::string_view meaning) {
  if (value >= least && value <= most) return absl::OkStatus();
  return Refuse(field, value, absl::StrCat(meaning, ", ", least, " to ", most));
}

// `allowed` is false for NaN too, where the caller compares with >= and <=.
absl::Status CheckNumber(absl::string_view field, double value, bool allowed,
                         absl::string_view advice) {
  if (allowed && std::isfinite(value)) return absl::OkStatus();
  return Refuse(field, value, advice);
}

absl::Status CheckName(absl::string_view field, const std::string& name) {
  bool good = !name.empty() && name.size() <= kNameBytesMax;
  for (char c : name) {
    good = good && ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-');
  }
  if (good) return absl::OkStatus();
  return Refuse(
      field, absl::StrCat("'", name.substr(0, 2 * kNameBytesMax), "'"),
      absl::StrCat("give a name of 1 to ", kNameBytesMax, " characters of a-z, 0-9, '-'"));
}

absl::Status CheckNodes(const v1::RunSpec& spec) {
  ISTHMUS_RETURN_IF_ERROR(CheckRange("the number of nodes", spec.nodes_size(), 1, kNodesMax,
                                     "name the sites of the run under 'nodes'"));
  std::unordered_set<std::string> names;
  for (int i = 0; i < spec.nodes_size(); ++i) {
    const std::string field = absl::StrCat("nodes[", i, "]");
    const v1::NodeSpec& node = spec.nodes(i);
    ISTHMUS_RETURN_IF_ERROR(CheckName(field + ".name", node.name()));
    if (!names.insert(node.name()).second) {
      return Refuse(field + ".name", absl::StrCat("'", node.name(), "'"),
                    "an earlier node has this name, give each its own");
    }
    ISTHMUS_RETURN_IF_ERROR(CheckRange(field + ".data_parts", node.data_parts(), 1, kDataPartsMax,
                                       "give the relative size of its data share"));
  }
  if (spec.quorum() > static_cast<uint32_t>(spec.nodes_size())) {
    return Refuse("quorum", spec.quorum(),
                  absl::StrCat("the run has ", spec.nodes_size(),
                               " nodes, give at most that, or 0 for all of them"));
  }
  return absl::OkStatus();
}

absl::Status CheckPatterns(absl::string_view field, size_t least, size_t most,
                           const google::protobuf::RepeatedPtrField<std::string>& patterns) {
  ISTHMUS_RETURN_IF_ERROR(CheckRange(absl::StrCat("the number of patterns in ", field),
                                     patterns.size(), least, most, "join patterns with '*'"));
  for (int i = 0; i < patterns.size(); ++i) {
    ISTHMUS_RETURN_IF_ERROR(CheckRange(absl::StrCat("the length of ", field, "[", i, "]"),
                                       patterns[i].size(), 1, kTensorNameBytesMax,
                                       "give a tensor name with '*' for any characters"));
    // A text file can spell bytes that no message may hold: stored, nobody could read them again.
    if (IsUtf8(patterns[i])) continue;
    return Refuse(absl::StrCat(field, "[", i, "]"),
                  absl::StrCat("'", absl::CHexEscape(patterns[i].substr(0, kNameBytesMax)), "'"),
                  "give a tensor name in UTF-8");
  }
  return absl::OkStatus();
}

absl::Status CheckModel(const v1::ModelSpec& model, v1::TokenFormat format) {
  ISTHMUS_RETURN_IF_ERROR(CheckRange("model.layers", model.layers(), 1, kLayersMax,
                                     "give the number of transformer blocks"));
  ISTHMUS_RETURN_IF_ERROR(
      CheckRange("model.width", model.width(), 1, kWidthMax, "give the embedding width"));
  ISTHMUS_RETURN_IF_ERROR(CheckRange("model.heads", model.heads(), 1, model.width(),
                                     "give the number of attention heads"));
  if (model.width() % model.heads() != 0) {
    return Refuse("model.width", model.width(),
                  absl::StrCat("model.heads is ", model.heads(), " and must divide it"));
  }
  ISTHMUS_RETURN_IF_ERROR(CheckRange("model.context", model.context(), 1, kContextMax,
                                     "give the length of a sequence in tokens"));
  // Where a token is a byte, every byte needs its row in the embedding.
  ISTHMUS_RETURN_IF_ERROR(CheckRange(
      "model.vocab", model.vocab(), format == v1::TOKEN_FORMAT_BYTES ? 256 : 1, kVocabMax,
      "give the number of tokens (at least 256 where data.format is TOKEN_FORMAT_BYTES)"));
  return CheckPatterns("model.frozen", 0, kFrozenPatternsMax, model.frozen());
}

absl::Status CheckData(const v1::RunSpec& spec) {
  // Trainers that build the model also read the data.
  if (!spec.has_data() && !spec.has_model()) return absl::OkStatus();
  const v1::DataSpec& data = spec.data();
  ISTHMUS_RETURN_IF_ERROR(CheckRange("data.sequences_per_node", data.sequences_per_node(), 1,
                                     kSequencesMax, "give the sequences a node takes a step"));
  ISTHMUS_RETURN_IF_ERROR(CheckRange("data.heldout_permille", data.heldout_permille(), 1, 999,
                                     "give the held-out part in thousandths"));
  ISTHMUS_RETURN_IF_ERROR(CheckRange("data.eval_sequences", data.eval_sequences(), 1, kSequencesMax,
                                     "give the held-out sequences of an evaluation"));
  if (v1::TokenFormat_IsValid(data.format()) && data.format() != v1::TOKEN_FORMAT_UNSPECIFIED) {
    return absl::OkStatus();
  }
  return Refuse("data.format", static_cast<int>(data.format()),
                "give TOKEN_FORMAT_BYTES, TOKEN_FORMAT_UINT16 or TOKEN_FORMAT_UINT32");
}

absl::Status CheckDecay(const v1::OptimizerSpec& o) {
  ISTHMUS_RETURN_IF_ERROR(CheckNumber("optimizer.weight_decay", o.weight_decay(),
                                      o.weight_decay() >= 0, "give a finite number, 0 or more"));
  ISTHMUS_RETURN_IF_ERROR(CheckRange("the number of optimizer.decay_groups", o.decay_groups_size(),
                                     0, kDecayGroupsMax, "join groups"));
  double most = 1;
  for (int i = 0; i < o.decay_groups_size(); ++i) {
    const std::string field = absl::StrCat("optimizer.decay_groups[", i, "]");
    const v1::DecayGroup& group = o.decay_groups(i);
    ISTHMUS_RETURN_IF_ERROR(
        CheckPatterns(field + ".tensors", 1, kDecayPatternsMax, group.tensors()));
    ISTHMUS_RETURN_IF_ERROR(CheckNumber(field + ".scale", group.scale(),
                                        group.scale() >= 0 && group.scale() <= kDecayScaleMax,
                                        absl::StrCat("give 0 to ", kDecayScaleMax)));
    most = std::max<double>(most, group.scale());
  }
  // Above 1 the decay would turn the sign of every parameter.
  const double shrink = static_cast<double>(o.lr()) * static_cast<double>(o.weight_decay()) * most;
  return CheckNumber("optimizer.lr * optimizer.weight_decay (times the largest scale of a group)",
                     shrink, shrink <= 1, "the product is at most 1, lower weight_decay");
}

absl::Status CheckBase(const v1::OptimizerSpec& o) {
  if (!v1::BaseOptimizer_IsValid(o.base()) || o.base() == v1::BASE_OPTIMIZER_UNSPECIFIED) {
    return Refuse("optimizer.base", static_cast<int>(o.base()),
                  "give BASE_OPTIMIZER_SGD, BASE_OPTIMIZER_ADAMW or BASE_OPTIMIZER_LION");
  }
  ISTHMUS_RETURN_IF_ERROR(CheckNumber("optimizer.beta1", o.beta1(), o.beta1() >= 0 && o.beta1() < 1,
                                      "give the decay of the first moment, 0 or more, below 1"));
  ISTHMUS_RETURN_IF_ERROR(CheckNumber("optimizer.beta2", o.beta2(), o.beta2() >= 0 && o.beta2() < 1,
                                      "give the decay of the second moment, 0 or more, below 1"));
  if (o.momentum() != 0 && o.base() != v1::BASE_OPTIMIZER_SGD) {
    return Refuse("optimizer.momentum", o.momentum(),
                  absl::StrCat("it is that of BASE_OPTIMIZER_SGD; with ",
                               v1::BaseOptimizer_Name(o.base()), " leave it out"));
  }
  ISTHMUS_RETURN_IF_ERROR(CheckNumber("optimizer.momentum", o.momentum(),
                                      o.momentum() >= 0 && o.momentum() < 1,
                                      "give the decay of the momentum, 0 or more, below 1"));
  return CheckNumber("optimizer.eps", o.eps(), o.eps() > 0, "give a finite number above 0");
}

absl::Status CheckOptimizer(const v1::RunSpec& spec) {
  const v1::OptimizerSpec& o = spec.optimizer();
  ISTHMUS_RETURN_IF_ERROR(CheckNumber("optimizer.lr", o.lr(), o.lr() > 0,
                                      "give the peak learning rate, a finite number above 0"));
  if (o.warmup_steps() > spec.steps()) {
    return Refuse("optimizer.warmup_steps", o.warmup_steps(),
                  absl::StrCat("give at most steps, ", spec.steps()));
  }
  ISTHMUS_RETURN_IF_ERROR(CheckNumber("optimizer.lr_final_ratio", o.lr_final_ratio(),
                                      o.lr_final_ratio() >= 0 && o.lr_final_ratio() <= 1,
                                      "give the last rate as a share of lr, 0 to 1"));
  ISTHMUS_RETURN_IF_ERROR(CheckDecay(o));
  ISTHMUS_RETURN_IF_ERROR(CheckBase(o));
  if (o.momentum() != 0 && spec.has_outer()) {
    return Refuse("optimizer.momentum", o.momentum(),
                  "with an outer optimizer nodes take plain SGD steps; leave it out, or give "
                  "outer.kind OUTER_KIND_MOMENTUM");
  }
  return CheckNumber("optimizer.clip_norm", o.clip_norm(), o.clip_norm() >= 0,
                     "give a finite 2-norm, or 0 for no clipping");
}

absl::Status CheckDrift(const v1::RunSpec& spec) {
  const bool none = spec.codec().kind() == v1::CODEC_KIND_NONE;
  const bool drifts = none || HasStepsAlone(spec);
  if (drifts == spec.allow_drift()) return absl::OkStatus();
  if (drifts && !none) {
    return Refuse("allow_drift", "false",
                  absl::StrCat("with schedule.every ", spec.schedule().every(), " and skip ",
                               spec.schedule().skip(),
                               " nodes step alone between exchanges, and their parameters drift "
                               "apart for good; say allow_drift: true where that is meant, or use "
                               "a preset with local steps, which keeps them equal"));
  }
  if (drifts) {
    return Refuse("allow_drift", "false",
                  "with codec.kind CODEC_KIND_NONE the nodes' parameters drift apart for good; say "
                  "allow_drift: true where that is meant");
  }
  return Refuse("allow_drift", "true",
                absl::StrCat("codec.kind ", v1::CodecKind_Name(spec.codec().kind()),
                             " keeps the nodes equal; leave allow_drift out"));
}

// Replay is exact only where every contribution that was sent is waited for again.
absl::Status CheckDeterministic(const v1::RunSpec& spec) {
  if (!spec.deterministic()) return absl::OkStatus();
  if (EffectiveQuorum(spec) != static_cast<uint32_t>(spec.nodes_size())) {
    return Refuse("quorum", spec.quorum(),
                  "with deterministic: true every round waits for all nodes; leave quorum out");
  }
  if (spec.timing().deadline_ms() == 0) return absl::OkStatus();
  return Refuse("timing.deadline_ms", spec.timing().deadline_ms(),
                "with deterministic: true no round goes on without a node; leave it out");
}

absl::Status CheckTiming(const v1::TimingSpec& timing) {
  ISTHMUS_RETURN_IF_ERROR(CheckRange("timing.lease_ms", timing.lease_ms(), 3, kDurationMsMax,
                                     "give milliseconds until a silent node is no member"));
  ISTHMUS_RETURN_IF_ERROR(CheckRange("timing.heartbeat_ms", timing.heartbeat_ms(), 1,
                                     timing.lease_ms() / 3,
                                     "give at most a third of timing.lease_ms"));
  ISTHMUS_RETURN_IF_ERROR(CheckRange("timing.deadline_ms", timing.deadline_ms(), 0, kDurationMsMax,
                                     "give milliseconds, or 0 for the default"));
  return CheckRange("timing.grace_ms", timing.grace_ms(), 1, kDurationMsMax,
                    "give milliseconds after the first complete contribution");
}

absl::Status CheckSnapshot(const v1::RunSpec& spec) {
  const v1::SnapshotSpec& snapshot = spec.snapshot();
  ISTHMUS_RETURN_IF_ERROR(CheckRange("snapshot.every_rounds", snapshot.every_rounds(), 1, kStepsMax,
                                     "give the number of rounds between two snapshots"));
  ISTHMUS_RETURN_IF_ERROR(CheckRange("check_every", spec.check_every(), 0, kCheckEveryMax,
                                     "give the rounds between two comparisons of nodes' states, "
                                     "or 0 for none"));
  if (snapshot.start_node().empty()) return absl::OkStatus();
  const std::string node =
      absl::StrCat("'", snapshot.start_node().substr(0, 2 * kNameBytesMax), "'");
  if (NodeIndex(spec, snapshot.start_node()) < 0) {
    return Refuse("snapshot.start_node", node, "give the name of one of the spec's nodes");
  }
  if (!spec.allow_drift()) return absl::OkStatus();
  return Refuse("snapshot.start_node", node,
                "with allow_drift the nodes hold no common state; leave it out");
}

// Of the kinds that send rows, and of the rules.
absl::Status CheckRows(const v1::CodecSpec& codec) {
  if (!v1::MethodRules_IsValid(codec.rules())) {
    return Refuse("codec.rules", static_cast<int>(codec.rules()),
                  "give METHOD_RULES_ISTHMUS or METHOD_RULES_PUBLISHED");
  }
  if (!SendsRows(codec)) {
    if (!codec.has_rate()) return absl::OkStatus();
    return Refuse("codec.rate", codec.rate(),
                  absl::StrCat("codec.kind ", v1::CodecKind_Name(codec.kind()),
                               " sends no rows; leave it out, or give ",
                               AnyOf({v1::CODEC_KIND_RANDOM, v1::CODEC_KIND_STRIDING,
                                      v1::CODEC_KIND_SLICING})));
  }
  ISTHMUS_RETURN_IF_ERROR(CheckNumber("codec.rate", codec.rate(),
                                      codec.rate() > 0 && codec.rate() <= 1,
                                      "give the share of rows that travel, above 0, at most 1"));
  if (codec.numbers().format() != v1::NUMBER_FORMAT_SIGN1 &&
      codec.numbers().format() != v1::NUMBER_FORMAT_TERNARY) {
    return absl::OkStatus();
  }
  return Refuse(
      "codec.numbers.format", v1::NumberFormat_Name(codec.numbers().format()),
      absl::StrCat("rows that travel as signs alone would leave their size in no "
                   "residual; give ",
                   AnyOf({v1::NUMBER_FORMAT_F32, v1::NUMBER_FORMAT_BF16, v1::NUMBER_FORMAT_F16,
                          v1::NUMBER_FORMAT_INT8, v1::NUMBER_FORMAT_INT4})));
}

absl::Status CheckLook(const v1::RunSpec& spec) {
  if (!spec.has_look()) return absl::OkStatus();
  if (spec.overlap() == 0) {
    return Refuse("look", spec.look(),
                  "without overlap nothing is under way to look ahead by; leave it out");
  }
  ISTHMUS_RETURN_IF_ERROR(CheckNumber("look", spec.look(), spec.look() >= 0 && spec.look() <= 1,
                                      "give the share of the own step, 0 (off) to 1"));
  if (spec.codec().kind() != v1::CODEC_KIND_DENSE || spec.look() == 0) return absl::OkStatus();
  return Refuse("look", spec.look(),
                "codec.kind CODEC_KIND_DENSE sends gradients, of which no step is known before "
                "they are merged; leave it out");
}

absl::Status CheckOverlap(const v1::RunSpec& spec) {
  ISTHMUS_RETURN_IF_ERROR(CheckRange("overlap", spec.overlap(), 0, kOverlapMax,
                                     "give the rounds under way beside the oldest"));
  ISTHMUS_RETURN_IF_ERROR(CheckLook(spec));
  if (spec.overlap() == 0) return absl::OkStatus();
  if (IsOuter(spec)) {
    return Refuse("overlap", spec.overlap(),
                  "with an outer optimizer the round trip hides behind local steps already; leave "
                  "overlap out");
  }
  if (spec.allow_drift()) {
    return Refuse("overlap", spec.overlap(),
                  "with allow_drift nodes step by their own gradients and wait for nobody; leave "
                  "overlap out");
  }
  if (spec.codec().kind() != v1::CODEC_KIND_DENSE || !spec.deterministic()) {
    return absl::OkStatus();
  }
  return Refuse("overlap", spec.overlap(),
                "with codec.kind CODEC_KIND_DENSE a node that starts again has not kept what was "
                "under way; leave deterministic or overlap out");
}

// What travels of components, and in what form it comes back.
absl::Status CheckWire(const v1::CodecSpec& codec) {
  if (!v1::UpdateForm_IsValid(codec.update_form())) {
    return Refuse("codec.update_form", static_cast<int>(codec.update_form()),
                  absl::StrCat("leave it out, or give ",
                               AnyOf({v1::UPDATE_FORM_COMPONENTS, v1::UPDATE_FORM_CONTRIBUTIONS,
                                      v1::UPDATE_FORM_SIGN_PLANE, v1::UPDATE_FORM_DENSE})));
  }
  if (codec.kind() != v1::CODEC_KIND_DEMO) return absl::OkStatus();
  const std::string form = v1::UpdateForm_Name(codec.update_form());
  if (codec.update_form() != v1::UPDATE_FORM_UNSPECIFIED && !codec.has_numbers()) {
    return Refuse("codec.update_form", form, "it wants codec.numbers, say { }");
  }
  if (codec.update_form() == v1::UPDATE_FORM_SIGN_PLANE && !codec.sign()) {
    return Refuse("codec.update_form", form,
                  "codec.sign is false, and the step needs the update's values; give "
                  "UPDATE_FORM_COMPONENTS, or leave it out");
  }
  if (!codec.has_numbers()) return absl::OkStatus();
  const v1::NumbersSpec& numbers = codec.numbers();
  const std::string format = v1::NumberFormat_IsValid(numbers.format())
                                 ? v1::NumberFormat_Name(numbers.format())
                                 : absl::StrCat(static_cast<int>(numbers.format()));
  if (!v1::NumberFormat_IsValid(numbers.format()) ||
      numbers.format() == v1::NUMBER_FORMAT_UNSPECIFIED ||
      numbers.format() == v1::NUMBER_FORMAT_TERNARY) {
    return Refuse("codec.numbers.format", format,
                  absl::StrCat("components are sent as ",
                               AnyOf({v1::NUMBER_FORMAT_F32, v1::NUMBER_FORMAT_BF16,
                                      v1::NUMBER_FORMAT_F16, v1::NUMBER_FORMAT_INT8,
                                      v1::NUMBER_FORMAT_INT4, v1::NUMBER_FORMAT_SIGN1})));
  }
  if (numbers.group() > 0) {
    return Refuse("codec.numbers.group", numbers.group(),
                  "the components of a chunk share a scale; leave it out");
  }
  if (numbers.hadamard() == 0) return absl::OkStatus();
  return Refuse("codec.numbers.hadamard", numbers.hadamard(),
                "components are those of a transform already; leave it out");
}

// Each stands on those before it.
absl::Status CheckMethod(const v1::RunSpec& spec) {
  ISTHMUS_RETURN_IF_ERROR(CheckCodecSpec(spec.codec()));
  ISTHMUS_RETURN_IF_ERROR(CheckStages(spec));
  ISTHMUS_RETURN_IF_ERROR(CheckDrift(spec));
  return Together({CheckOverlap(spec), CheckSnapshot(spec)});
}

}  // namespace

absl::Status CheckCodecSpec(const v1::CodecSpec& codec) {
  if (!v1::CodecKind_IsValid(codec.kind()) || codec.kind() == v1::CODEC_KIND_UNSPECIFIED) {
    return Refuse(
        "codec.kind", static_cast<int>(codec.kind()),
        absl::StrCat("give ",
                     AnyOf({v1::CODEC_KIND_DEMO, v1::CODEC_KIND_RANDOM, v1::CODEC_KIND_STRIDING,
                            v1::CODEC_KIND_SLICING, v1::CODEC_KIND_DENSE, v1::CODEC_KIND_NONE}),
                     ", or with an outer optimizer ",
                     AnyOf({v1::CODEC_KIND_NUMBERS, v1::CODEC_KIND_TOPK, v1::CODEC_KIND_DCT})));
  }
  ISTHMUS_RETURN_IF_ERROR(CheckStageCodec(codec));
  ISTHMUS_RETURN_IF_ERROR(CheckRows(codec));
  ISTHMUS_RETURN_IF_ERROR(CheckWire(codec));
  if (codec.chunk_rule() != v1::CHUNK_RULE_TILES && codec.chunk_rule() != v1::CHUNK_RULE_DIVISOR) {
    return Refuse("codec.chunk_rule", static_cast<int>(codec.chunk_rule()),
                  "give CHUNK_RULE_TILES or CHUNK_RULE_DIVISOR");
  }
  ISTHMUS_RETURN_IF_ERROR(CheckRange("codec.chunk_side", codec.chunk_side(), 1,
                                     SendsRows(codec) ? kRowChunkSideMax : kChunkSideMax,
                                     "give the target side of a chunk"));
  const double matrix = codec.matrix_density();
  ISTHMUS_RETURN_IF_ERROR(CheckNumber("codec.matrix_density", matrix, matrix > 0 && matrix <= 1,
                                      "give a share above 0, at most 1"));
  const double vector = codec.vector_density();
  ISTHMUS_RETURN_IF_ERROR(CheckNumber("codec.vector_density", vector, vector > 0 && vector <= 1,
                                      "give a share above 0, at most 1"));
  if (codec.top_k() > 0 && codec.chunk_rule() != v1::CHUNK_RULE_DIVISOR) {
    return Refuse("codec.top_k", codec.top_k(),
                  "it goes with CHUNK_RULE_DIVISOR only, use the densities instead");
  }
  if (!codec.has_beta() || !codec.has_alpha() || !codec.has_sign()) {
    return absl::InvalidArgumentError(
        "codec.beta, codec.alpha or codec.sign is missing; complete the spec first");
  }
  ISTHMUS_RETURN_IF_ERROR(CheckNumber("codec.beta", codec.beta(),
                                      codec.beta() >= 0 && codec.beta() < 1,
                                      "give the decay of the residual, 0 or more, below 1"));
  return CheckNumber("codec.alpha", codec.alpha(), codec.alpha() > 0 && codec.alpha() <= 1,
                     "give the share taken out of the residual, above 0, at most 1");
}

absl::Status CheckRunSpec(const v1::RunSpec& spec) {
  ISTHMUS_RETURN_IF_ERROR(CheckName("run", spec.run()));
  ISTHMUS_RETURN_IF_ERROR(
      CheckRange("steps", spec.steps(), 1, kStepsMax, "give the number of rounds"));
  ISTHMUS_RETURN_IF_ERROR(CheckNodes(spec));
  if (FindPreset(spec.preset()) == nullptr) {
    std::vector<absl::string_view> names;
    for (const Preset& preset : Presets()) names.push_back(preset.name);
    return Refuse("preset", absl::StrCat("'", spec.preset().substr(0, 2 * kNameBytesMax), "'"),
                  absl::StrCat("known presets are ", absl::StrJoin(names, ", ")));
  }
  ISTHMUS_RETURN_IF_ERROR(Together(
      {spec.has_model() ? CheckModel(spec.model(), spec.data().format()) : absl::OkStatus(),
       CheckData(spec), CheckOptimizer(spec), CheckMethod(spec), CheckTiming(spec.timing()),
       CheckDeterministic(spec)}));
  if (!spec.start_state_sha256().empty() && spec.start_state_sha256().size() != kSha256Bytes) {
    return Refuse("the length of start_state_sha256", spec.start_state_sha256().size(),
                  absl::StrCat("give ", kSha256Bytes, " bytes, or none"));
  }
  return absl::OkStatus();
}

}  // namespace isthmus
