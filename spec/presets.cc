#include "spec/presets.h"

#include <algorithm>

#include "base/check.h"
#include "google/protobuf/text_format.h"

namespace isthmus {
namespace {

v1::RunSpec ValuesOf(const Preset& preset) {
  v1::RunSpec spec;
  ISTHMUS_CHECK(google::protobuf::TextFormat::ParseFromString(std::string(preset.values), &spec));
  return spec;
}

// Whether the spec asks for another kind than the preset has.
template <typename Kind>
bool Differs(Kind given, Kind preset) {
  return given != Kind{} && given != preset;
}

}  // namespace

const std::vector<Preset>& Presets() {
  static const auto* const presets = new std::vector<Preset>{
      {"demo", "DeMo, arXiv 2411.19870; FlexDeMo, arXiv 2502.06728",
       "every step the fastest components of a momentum, as signs; the smallest messages",
       "codec { kind: CODEC_KIND_DEMO } optimizer { base: BASE_OPTIMIZER_SGD }"},
      {"flexdemo", "FlexDeMo, arXiv 2502.06728", "the same as demo",
       "codec { kind: CODEC_KIND_DEMO } optimizer { base: BASE_OPTIMIZER_SGD }"},
      {"random", "FlexDeMo, arXiv 2502.06728",
       "as demo, but rows of the momentum travel, drawn anew every step",
       "codec { kind: CODEC_KIND_RANDOM } optimizer { base: BASE_OPTIMIZER_SGD }"},
      {"striding", "FlexDeMo, arXiv 2502.06728",
       "as demo, but rows of the momentum travel that lie a stride apart, others every step",
       "codec { kind: CODEC_KIND_STRIDING } optimizer { base: BASE_OPTIMIZER_SGD }"},
      {"slicing", "FlexDeMo, arXiv 2502.06728",
       "as demo, but rows of the momentum travel that follow each other, others every step",
       "codec { kind: CODEC_KIND_SLICING } optimizer { base: BASE_OPTIMIZER_SGD }"},
      {"full", "AdamW, arXiv 1711.05101",
       "every step the whole gradient, averaged over all nodes: what others are compared with",
       "codec { kind: CODEC_KIND_DENSE } optimizer { base: BASE_OPTIMIZER_ADAMW }"},
      {"none", "AdamW, arXiv 1711.05101", "nothing travels; wants allow_drift: true",
       "codec { kind: CODEC_KIND_NONE } optimizer { base: BASE_OPTIMIZER_ADAMW }"},
      {"diloco", "DiLoCo, arXiv 2311.08105",
       "hundreds of AdamW steps alone, then Nesterov momentum on what came of them",
       "source: SOURCE_PARAM_DELTA schedule { local_steps: 500 } "
       "codec { kind: CODEC_KIND_NUMBERS } aggregate { kind: AGGREGATE_KIND_MEAN } "
       "outer { kind: OUTER_KIND_NESTEROV lr: 0.7 momentum: 0.9 }"},
      {"dist_sign_momentum", "distributed sign momentum, arXiv 2411.17866",
       "the paper's settings, whose momentum remembers tens of rounds: for thousands of rounds",
       "source: SOURCE_PARAM_DELTA schedule { local_steps: 12 } "
       "codec { kind: CODEC_KIND_NUMBERS reply { format: NUMBER_FORMAT_TERNARY } } "
       "aggregate { kind: AGGREGATE_KIND_MEAN } "
       "outer { kind: OUTER_KIND_SIGN_MOMENTUM beta1: 0.95 beta2: 0.98 eta: 1 weight_decay: 0.1 "
       "sign: OUTER_SIGN_EXACT }"},
      {"dist_sign_momentum_short", "randomized sign of arXiv 2411.17866, settings for short runs",
       "a three-point random sign without memory, on average the plain mean: for hundreds of "
       "rounds",
       "source: SOURCE_PARAM_DELTA schedule { local_steps: 12 } "
       "codec { kind: CODEC_KIND_NUMBERS reply { format: NUMBER_FORMAT_TERNARY } } "
       "aggregate { kind: AGGREGATE_KIND_MEAN } "
       "outer { kind: OUTER_KIND_SIGN_MOMENTUM beta1: 0 beta2: 0.9 eta: 4 weight_decay: 0.1 "
       "sign: OUTER_SIGN_RANDOM_THREE_POINT bound: 4 }"},
      {"slowmo", "SlowMo, arXiv 1910.00643", "local steps with a slow momentum on their average",
       "source: SOURCE_PARAM_DELTA schedule { local_steps: 48 } "
       "codec { kind: CODEC_KIND_NUMBERS } aggregate { kind: AGGREGATE_KIND_MEAN } "
       "outer { kind: OUTER_KIND_SLOWMO alpha: 1 beta: 0.5 }"},
      {"local_sgd", "local SGD, arXiv 1805.09767", "local steps, then the average of the nodes",
       "source: SOURCE_PARAM_DELTA schedule { local_steps: 8 } "
       "codec { kind: CODEC_KIND_NUMBERS } aggregate { kind: AGGREGATE_KIND_MEAN } "
       "outer { kind: OUTER_KIND_ASSIGN }"},
      {"sparse_loco", "SparseLoCo, arXiv 2508.15706",
       "local steps; 64 of 4,096 values travel, the residual is the momentum; 68 rounds want 512",
       "source: SOURCE_PARAM_DELTA schedule { local_steps: 30 } "
       "codec { kind: CODEC_KIND_TOPK topk_chunk: 4096 topk_k: 64 feedback { decay: 0.95 } } "
       "aggregate { kind: AGGREGATE_KIND_MEAN } outer { kind: OUTER_KIND_SGD lr: 1 }"},
      {"demo_local", "DCT components of arXiv 2411.19870 over local steps",
       "local steps; 32 of 4,096 DCT components of a tile travel; 68 rounds want 512",
       "source: SOURCE_PARAM_DELTA schedule { local_steps: 30 } "
       "codec { kind: CODEC_KIND_DCT feedback { decay: 1 } } "
       "aggregate { kind: AGGREGATE_KIND_MEAN } outer { kind: OUTER_KIND_SGD lr: 1 }"},
      {"dist_lion", "distributed Lion, arXiv 2404.00438",
       "every step one bit a parameter: the sign of a local Lion step, by majority",
       "source: SOURCE_UPDATE_SIGN schedule { local_steps: 1 } "
       "codec { kind: CODEC_KIND_NUMBERS numbers { format: NUMBER_FORMAT_SIGN1 } "
       "reply { format: NUMBER_FORMAT_TERNARY } } "
       "aggregate { kind: AGGREGATE_KIND_MAJORITY } outer { kind: OUTER_KIND_LION } "
       "optimizer { base: BASE_OPTIMIZER_LION }"},
  };
  return *presets;
}

const Preset* FindPreset(absl::string_view name) {
  const std::vector<Preset>& presets = Presets();
  const auto found = std::find_if(presets.begin(), presets.end(),
                                  [name](const Preset& preset) { return preset.name == name; });
  return found == presets.end() ? nullptr : &*found;
}

void FillPreset(v1::RunSpec* spec) {
  if (spec->preset().empty()) spec->set_preset("demo");
  const Preset* preset = FindPreset(spec->preset());
  if (preset == nullptr) return;
  v1::RunSpec filled = ValuesOf(*preset);
  if (Differs(spec->codec().kind(), filled.codec().kind())) filled.clear_codec();
  if (Differs(spec->codec().numbers().format(), filled.codec().numbers().format())) {
    filled.mutable_codec()->clear_numbers();
  }
  if (Differs(spec->codec().reply().format(), filled.codec().reply().format())) {
    filled.mutable_codec()->clear_reply();
  }
  if (Differs(spec->aggregate().kind(), filled.aggregate().kind())) filled.clear_aggregate();
  if (Differs(spec->outer().kind(), filled.outer().kind())) filled.clear_outer();
  filled.MergeFrom(*spec);
  *spec = std::move(filled);
}

}  // namespace isthmus
