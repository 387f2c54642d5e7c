#include "worker/gpt2.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/sha256.h"
#include "base/status_macros.h"
#include "base/text.h"

namespace isthmus {
namespace {

constexpr double kLayerNormEpsilon = 1e-5;

at::Tensor LayerNorm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  return at::layer_norm(x, weight.sizes(), weight, bias, kLayerNormEpsilon);
}

// x [n, in] W [in, out] + b.
at::Tensor Linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  return at::addmm(bias, x, weight);
}

at::Tensor Embed(const std::vector<at::Tensor>& tensors, const Batch& batch) {
  return at::embedding(tensors[0], batch.tokens) + tensors[1].narrow(0, 0, batch.tokens.size(1));
}

at::Tensor Attend(const at::Tensor& qkv, int64_t sequences, int64_t length, int64_t heads) {
  const int64_t width = qkv.size(1) / 3;
  // Three column ranges of one product: their gradients are joined by one copy.
  const std::vector<at::Tensor> parts = qkv.split(width, 1);
  const auto by_head = [&](const at::Tensor& part) {
    return part.view({sequences, length, heads, width / heads}).transpose(1, 2);
  };
  const at::Tensor attended = at::scaled_dot_product_attention(by_head(parts[0]), by_head(parts[1]),
                                                               by_head(parts[2]), std::nullopt, 0.0,
                                                               /*is_causal=*/true);
  return attended.transpose(1, 2).reshape({sequences * length, width});
}

// Order of `t`: ln_1, attn.c_attn, attn.c_proj, ln_2, mlp.c_fc, mlp.c_proj; weight, then bias.
at::Tensor Block(const at::Tensor& input, const std::vector<at::Tensor>& t, int64_t heads) {
  const int64_t sequences = input.size(0), length = input.size(1), width = input.size(2);
  const at::Tensor x = input.reshape({sequences * length, width});
  const at::Tensor qkv = Linear(LayerNorm(x, t[0], t[1]), t[2], t[3]);
  const at::Tensor y = x + Linear(Attend(qkv, sequences, length, heads), t[4], t[5]);
  const at::Tensor hidden = at::gelu(Linear(LayerNorm(y, t[6], t[7]), t[8], t[9]), "tanh");
  return (y + Linear(hidden, t[10], t[11])).view({sequences, length, width});
}

// Tensors: wte, ln_f.weight, ln_f.bias.
at::Tensor Head(const at::Tensor& input, const std::vector<at::Tensor>& t, const Batch& batch) {
  const at::Tensor logits = LayerNorm(input, t[1], t[2]).matmul(t[0].t());
  if (!batch.targets.defined()) return logits;
  return at::cross_entropy_loss(logits.view({-1, logits.size(-1)}), batch.targets.reshape({-1}));
}

absl::Status Freeze(const v1::ModelSpec& spec, std::vector<ModelTensor>* tensors) {
  for (const std::string& pattern : spec.frozen()) {
    bool found = false;
    for (ModelTensor& tensor : *tensors) {
      if (!MatchesGlob(pattern, tensor.name)) continue;
      found = tensor.frozen = true;
    }
    if (!found) {
      return absl::InvalidArgumentError(absl::StrCat(
          "model.frozen: '", pattern, "' matches no tensor of the model; names are like '",
          tensors->back().name, "'"));
    }
  }
  return absl::OkStatus();
}

uint64_t SplitMix64(uint64_t state) {
  state = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9u;
  state = (state ^ (state >> 27)) * 0x94d049bb133111ebu;
  return state ^ (state >> 31);
}

// Nearly normal: the sum of twelve uniform values of 16 bits (Irwin-Hall), an exact integer, where
// sine and logarithm would differ between machines. Variance 1 up to 2^-32.
double StandardNormal(uint64_t key, uint64_t element) {
  int64_t sum = 0;
  for (uint64_t word = 0; word < 3; ++word) {
    const uint64_t bits = SplitMix64(key + (element * 3 + word) * 0x9e3779b97f4a7c15u);
    for (int shift = 0; shift < 64; shift += 16) sum += (bits >> shift) & 0xffff;
  }
  return (static_cast<double>(sum) - 6.0 * 65535.0) / 65536.0;
}

}  // namespace

absl::StatusOr<Model> MakeGpt2(const v1::ModelSpec& spec) {
  const int64_t width = spec.width(), heads = spec.heads(), vocab = spec.vocab();
  if (heads == 0 || width == 0 || width % heads != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("model.heads is ", heads, "; it must divide model.width, which is ", width));
  }
  Model model;
  const auto add = [&model](const std::string& name, std::vector<int64_t> shape) {
    model.tensors.push_back({"transformer." + name, std::move(shape)});
    model.stages.back().tensors.push_back(static_cast<uint32_t>(model.tensors.size() - 1));
  };
  const auto add_pair = [&add](const std::string& name, std::vector<int64_t> shape) {
    const int64_t outputs = shape.back();
    add(name + ".weight", std::move(shape));
    add(name + ".bias", {outputs});
  };
  model.stages.push_back(
      {"embedding", {}, [](const at::Tensor&, const auto& tensors, const Batch& batch) {
         return Embed(tensors, batch);
       }});
  add("wte.weight", {vocab, width});
  add("wpe.weight", {static_cast<int64_t>(spec.context()), width});
  for (uint32_t layer = 0; layer < spec.layers(); ++layer) {
    const std::string name = absl::StrCat("h.", layer);
    model.stages.push_back(
        {name, {}, [heads](const at::Tensor& input, const auto& tensors, const Batch&) {
           return Block(input, tensors, heads);
         }});
    add_pair(name + ".ln_1", {width});
    add_pair(name + ".attn.c_attn", {width, 3 * width});
    add_pair(name + ".attn.c_proj", {width, width});
    add_pair(name + ".ln_2", {width});
    add_pair(name + ".mlp.c_fc", {width, 4 * width});
    add_pair(name + ".mlp.c_proj", {4 * width, width});
  }
  model.stages.push_back(
      {"head", {0}, [](const at::Tensor& input, const auto& tensors, const Batch& batch) {
         return Head(input, tensors, batch);
       }});
  add_pair("ln_f", {width});
  ISTHMUS_RETURN_IF_ERROR(Freeze(spec, &model.tensors));
  return model;
}

void InitializeGpt2(const v1::ModelSpec& spec, uint64_t seed, absl::string_view tensor,
                    uint64_t first_element, absl::Span<float> values) {
  const bool is_norm = absl::StrContains(tensor, "ln_");
  if (absl::EndsWith(tensor, ".bias") || is_norm) {
    for (float& value : values) value = absl::EndsWith(tensor, ".bias") ? 0.0f : 1.0f;
    return;
  }
  // SmallInit (Nguyen and Salazar 2019, arXiv 1910.05895): 0.02 as in GPT-2 suits its width of 768,
  // where this gives 0.023; narrow models start so small that they learn nothing but frequencies
  // for hundreds of steps.
  double deviation = std::sqrt(2.0 / (5.0 * spec.width()));
  if (absl::EndsWith(tensor, "c_proj.weight")) deviation /= std::sqrt(2.0 * spec.layers());
  Sha256 hash;
  hash.UpdateU64(seed);
  hash.UpdateSized(tensor);
  const std::string digest = hash.Finish();
  uint64_t key = 0;
  for (int i = 0; i < 8; ++i) key |= uint64_t{static_cast<uint8_t>(digest[i])} << (8 * i);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(deviation * StandardNormal(key, first_element + i));
  }
}

}  // namespace isthmus
