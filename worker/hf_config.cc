#include "worker/hf_config.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/status_macros.h"
#include "worker/json_text.h"

namespace isthmus {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kLayerNormEpsilon = 1e-5;

// A size of the model: its name in config.json, in the RunSpec, and its limit there.
struct Size {
  const char* name;
  const char* spec_name;
  uint32_t (v1::ModelSpec::*get)() const;
  void (v1::ModelSpec::*set)(uint32_t);
  uint32_t max;
};
constexpr Size kSizes[] = {
    {"n_layer", "layers", &v1::ModelSpec::layers, &v1::ModelSpec::set_layers, kLayersMax},
    {"n_head", "heads", &v1::ModelSpec::heads, &v1::ModelSpec::set_heads, kWidthMax},
    {"n_embd", "width", &v1::ModelSpec::width, &v1::ModelSpec::set_width, kWidthMax},
    {"n_positions", "context", &v1::ModelSpec::context, &v1::ModelSpec::set_context, kContextMax},
    {"vocab_size", "vocab", &v1::ModelSpec::vocab, &v1::ModelSpec::set_vocab, kVocabMax},
};

absl::Status Bad(const std::string& path, const std::string& name, const Json& value,
                 const std::string& wanted) {
  const std::string text = value.is_discarded() ? "missing" : value.dump().substr(0, 100);
  return absl::InvalidArgumentError(
      absl::StrCat("'", path, "': ", name, " is ", text, "; ", wanted));
}

// Fields that change what the model computes; one that is missing has Transformers' default.
absl::Status CheckVariant(const Json& config, const std::string& path) {
  const std::string only = "the trainer's GPT-2 has ";
  const auto with_default = [&](const char* name, const Json& standard) {
    return config.contains(name) ? config[name] : standard;
  };
  const Json activation = with_default("activation_function", "gelu_new");
  if (activation != "gelu_new" && activation != "gelu_pytorch_tanh") {
    return Bad(path, "activation_function", activation, only + "\"gelu_new\"");
  }
  const Json epsilon = with_default("layer_norm_epsilon", kLayerNormEpsilon);
  if (!epsilon.is_number() || std::abs(epsilon.get<double>() - kLayerNormEpsilon) > 1e-9) {
    return Bad(path, "layer_norm_epsilon", epsilon, only + "1e-05");
  }
  const Json inner = with_default("n_inner", nullptr);
  if (!inner.is_null() && inner != 4 * config["n_embd"].get<uint64_t>()) {
    return Bad(path, "n_inner", inner, only + "4 * n_embd");
  }
  const std::pair<const char*, bool> switches[] = {{"tie_word_embeddings", true},
                                                   {"scale_attn_weights", true},
                                                   {"scale_attn_by_inverse_layer_idx", false},
                                                   {"add_cross_attention", false}};
  for (const auto& [name, wanted] : switches) {
    const Json value = with_default(name, wanted);
    if (value != wanted) return Bad(path, name, value, only + (wanted ? "true" : "false"));
  }
  return absl::OkStatus();
}

}  // namespace

std::string Gpt2ConfigJson(const v1::ModelSpec& spec) {
  Json config;
  config["architectures"] = {"GPT2LMHeadModel"};
  config["model_type"] = "gpt2";
  for (const Size& size : kSizes) config[size.name] = (spec.*size.get)();
  config["n_ctx"] = spec.context();
  config["n_inner"] = nullptr;
  config["activation_function"] = "gelu_new";
  config["layer_norm_epsilon"] = kLayerNormEpsilon;
  for (const char* dropout : {"attn_pdrop", "embd_pdrop", "resid_pdrop"}) config[dropout] = 0.0;
  config["scale_attn_weights"] = true;
  config["scale_attn_by_inverse_layer_idx"] = false;
  config["reorder_and_upcast_attn"] = false;
  config["initializer_range"] = 0.02;
  config["tie_word_embeddings"] = true;
  // GPT-2's own token of both names, 50256, is none of another vocabulary.
  config["bos_token_id"] = nullptr;
  config["eos_token_id"] = nullptr;
  config["use_cache"] = true;
  config["torch_dtype"] = "float32";
  return config.dump(2) + "\n";
}

absl::StatusOr<v1::ModelSpec> ParseGpt2Config(const std::string& text, const std::string& path) {
  const Json config = ParseJson(text);
  if (!config.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", path, "' is not a JSON object, or is nested deeper than ", kJsonDepthMax));
  }
  const Json nothing(Json::value_t::discarded);
  if (!config.contains("model_type") || config["model_type"] != "gpt2") {
    return Bad(path, "model_type", config.contains("model_type") ? config["model_type"] : nothing,
               "the trainer's models are \"gpt2\"");
  }
  v1::ModelSpec spec;
  for (const Size& size : kSizes) {
    const Json value = config.contains(size.name) ? config[size.name] : nothing;
    if (!value.is_number_unsigned() || value.get<uint64_t>() == 0 ||
        value.get<uint64_t>() > size.max) {
      return Bad(path, size.name, value, absl::StrCat("it must be 1 to ", size.max));
    }
    (spec.*size.set)(static_cast<uint32_t>(value.get<uint64_t>()));
  }
  if (spec.width() % spec.heads() != 0) {
    return Bad(path, "n_head", config["n_head"],
               absl::StrCat("it must divide n_embd, which is ", spec.width()));
  }
  ISTHMUS_RETURN_IF_ERROR(CheckVariant(config, path));
  return spec;
}

absl::Status CheckSameModel(const v1::ModelSpec& run, const v1::ModelSpec& found,
                            const std::string& path) {
  for (const Size& size : kSizes) {
    if ((run.*size.get)() == (found.*size.get)()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("'", path, "': ", size.name, " is ", (found.*size.get)(), ", but model.",
                     size.spec_name, " of the run is ", (run.*size.get)(),
                     "; change the run, or start from another checkpoint"));
  }
  return absl::OkStatus();
}

}  // namespace isthmus
