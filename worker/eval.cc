#include "worker/eval.h"

#include <ATen/core/Tensor.h>

#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/clock.h"
#include "base/status_macros.h"
#include "spec/data_share.h"
#include "worker/batch.h"
#include "worker/held_out.h"
#include "worker/loaded_model.h"

namespace isthmus {
namespace {

absl::StatusOr<HeldOut> OpenTokens(const EvalOptions& options, const v1::ModelSpec& model) {
  TokenDataOptions files;
  files.files = options.data;
  files.flag = options.flag;
  files.format = options.format;
  files.vocab = model.vocab();
  files.from_flags = true;
  ISTHMUS_ASSIGN_OR_RETURN(std::shared_ptr<const TokenData> data, TokenData::Open(files));
  v1::RunSpec spec;
  spec.mutable_data()->set_heldout_permille(options.heldout_permille);
  HeldOutOptions held_out;
  held_out.range = HeldOutRange(spec, data->tokens());
  held_out.context = model.context();
  held_out.vocab = model.vocab();
  held_out.sequences = options.eval_sequences;
  if (held_out.sequences == 0 && held_out.range.tokens() > 0) {
    held_out.sequences = (held_out.range.tokens() - 1) / model.context();
  }
  return HeldOut::Make(std::move(data), held_out);
}

// JSON has no word for what is not finite.
nlohmann::ordered_json Number(double value) {
  return std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json(nullptr);
}

}  // namespace

absl::StatusOr<EvalResult> Evaluate(const EvalOptions& options) {
  const MonotonicClock clock;
  const int64_t started_ms = clock.NowMs();
  ISTHMUS_ASSIGN_OR_RETURN(const auto model, LoadedModel::Load(options.checkpoint));
  ISTHMUS_ASSIGN_OR_RETURN(const HeldOut held_out, OpenTokens(options, model->spec()));
  EvalResult result;
  double sum = 0;  // of losses times sequences
  for (uint64_t i = 0; i < held_out.Batches(); ++i) {
    ISTHMUS_ASSIGN_OR_RETURN(const TokenRows rows, held_out.Rows(i));
    ISTHMUS_ASSIGN_OR_RETURN(const at::Tensor loss, model->Forward(ToBatch(rows)));
    sum += loss.item<double>() * static_cast<double>(rows.sequences);
    result.sequences += static_cast<uint64_t>(rows.sequences);
  }
  result.loss = sum / static_cast<double>(result.sequences);
  result.tokens = result.sequences * model->spec().context();
  result.seconds = static_cast<double>(clock.NowMs() - started_ms) / 1e3;
  return result;
}

std::string EvalJson(const EvalResult& result) {
  nlohmann::ordered_json json;
  json["loss"] = Number(result.loss);
  json["perplexity"] = Number(std::exp(result.loss));
  json["tokens"] = result.tokens;
  json["sequences"] = result.sequences;
  json["seconds"] = Number(result.seconds);
  return json.dump();
}

}  // namespace isthmus
