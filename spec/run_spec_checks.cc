// The checks of a complete RunSpec: each refusal names field, value and limit and says what to do.
#include <cmath>
#include <unordered_set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "base/limits.h"
#include "base/sha256.h"
#include "base/status_macros.h"
#include "spec/run_spec.h"

namespace isthmus {
namespace {

constexpr absl::string_view kPresets[] = {"demo", "flexdemo"};

template <typename T>
absl::Status Refuse(absl::string_view field, const T& value, absl::string_view advice) {
  return absl::InvalidArgumentError(absl::StrCat(field, " is ", value, "; ", advice));
}

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

absl::Status CheckModel(const v1::ModelSpec& model) {
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
  // A token is a byte of text, so every byte needs its row in the embedding.
  ISTHMUS_RETURN_IF_ERROR(CheckRange("model.vocab", model.vocab(), 256, kVocabMax,
                                     "give the number of tokens (256 for bytes)"));
  ISTHMUS_RETURN_IF_ERROR(CheckRange("the number of patterns in model.frozen", model.frozen_size(),
                                     0, kFrozenPatternsMax, "join patterns with '*'"));
  for (int i = 0; i < model.frozen_size(); ++i) {
    ISTHMUS_RETURN_IF_ERROR(CheckRange(absl::StrCat("the length of model.frozen[", i, "]"),
                                       model.frozen(i).size(), 1, kTensorNameBytesMax,
                                       "give a tensor name with '*' for any characters"));
  }
  return absl::OkStatus();
}

absl::Status CheckData(const v1::RunSpec& spec) {
  // Trainers that build the model also read the data.
  if (!spec.has_data() && !spec.has_model()) return absl::OkStatus();
  const v1::DataSpec& data = spec.data();
  ISTHMUS_RETURN_IF_ERROR(CheckRange("data.sequences_per_node", data.sequences_per_node(), 1,
                                     kSequencesMax, "give the sequences a node takes a step"));
  ISTHMUS_RETURN_IF_ERROR(CheckRange("data.heldout_permille", data.heldout_permille(), 1, 999,
                                     "give the held-out part in thousandths"));
  return CheckRange("data.eval_sequences", data.eval_sequences(), 1, kSequencesMax,
                    "give the held-out sequences of an evaluation");
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
  ISTHMUS_RETURN_IF_ERROR(CheckNumber("optimizer.weight_decay", o.weight_decay(),
                                      o.weight_decay() >= 0, "give a finite number, 0 or more"));
  // Above 1 the decay would turn the sign of every parameter.
  const double shrink = static_cast<double>(o.lr()) * static_cast<double>(o.weight_decay());
  ISTHMUS_RETURN_IF_ERROR(CheckNumber("optimizer.lr * optimizer.weight_decay", shrink, shrink <= 1,
                                      "the product is at most 1, lower weight_decay"));
  return CheckNumber("optimizer.clip_norm", o.clip_norm(), o.clip_norm() >= 0,
                     "give a finite 2-norm, or 0 for no clipping");
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

}  // namespace

absl::Status CheckCodecSpec(const v1::CodecSpec& codec) {
  if (codec.chunk_rule() != v1::CHUNK_RULE_TILES && codec.chunk_rule() != v1::CHUNK_RULE_DIVISOR) {
    return Refuse("codec.chunk_rule", static_cast<int>(codec.chunk_rule()),
                  "give CHUNK_RULE_TILES or CHUNK_RULE_DIVISOR");
  }
  ISTHMUS_RETURN_IF_ERROR(CheckRange("codec.chunk_side", codec.chunk_side(), 1, kChunkSideMax,
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
  bool known = false;
  for (absl::string_view preset : kPresets) known = known || spec.preset() == preset;
  if (!known) {
    return Refuse("preset", absl::StrCat("'", spec.preset(), "'"),
                  absl::StrCat("known presets are ", absl::StrJoin(kPresets, ", ")));
  }
  if (spec.has_model()) ISTHMUS_RETURN_IF_ERROR(CheckModel(spec.model()));
  ISTHMUS_RETURN_IF_ERROR(CheckData(spec));
  ISTHMUS_RETURN_IF_ERROR(CheckOptimizer(spec));
  ISTHMUS_RETURN_IF_ERROR(CheckCodecSpec(spec.codec()));
  ISTHMUS_RETURN_IF_ERROR(CheckTiming(spec.timing()));
  if (!spec.start_state_sha256().empty() && spec.start_state_sha256().size() != kSha256Bytes) {
    return Refuse("the length of start_state_sha256", spec.start_state_sha256().size(),
                  absl::StrCat("give ", kSha256Bytes, " bytes, or none"));
  }
  return absl::OkStatus();
}

}  // namespace isthmus
