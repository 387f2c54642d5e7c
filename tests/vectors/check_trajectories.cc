// The groups that train: recorded runs of several nodes, step by step.
#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/limits.h"
#include "base/status_macros.h"
#include "spec/rounds.h"
#include "spec/rows.h"
#include "tests/vectors/demo_run.h"
#include "tests/vectors/demo_vectors.h"

namespace isthmus {
namespace {

// Tolerances stated with the recordings, all absolute.
constexpr double kResidualTolerance = 2e-8;
// Not stated: an update sums up components of all nodes, so its round-off is that of a few
// residuals.
constexpr double kUpdateTolerance = 5e-8;
constexpr double kSignedParameterTolerance = 1e-7;
constexpr double kParameterTolerance = 1.5e-7;
// The residual's tolerance is stated for values up to about this. The transform keeps the 2-norm,
// so components are larger, and their round-off grows with them.
constexpr float kResidualMax = 0.05f;
// Below this share of its maximum an update's sign is only round-off.
constexpr float kAmbiguousShare = 1e-6f;

// The settings of a run that this checker understands, or that do not change its numbers.
const std::set<std::string>& KnownSettings() {
  static const auto* const known = new std::set<std::string>{"name",
                                                             "opt",
                                                             "rep",
                                                             "k",
                                                             "chunk",
                                                             "rate",
                                                             "decay",
                                                             "sign",
                                                             "lr",
                                                             "sgd_wd",
                                                             "wd",
                                                             "adamw_wd",
                                                             "every",
                                                             "skip",
                                                             "nodes",
                                                             "steps",
                                                             "shapes",
                                                             "params_bit_equal_on_all_nodes",
                                                             "note",
                                                             "tx_rx_bytes_per_step",
                                                             "wire_index_dtype",
                                                             "error"};
  return *known;
}

double Number(const nlohmann::json& run, const char* key, double otherwise) {
  return run.contains(key) && run[key].is_number() ? run[key].get<double>() : otherwise;
}

std::string Word(const nlohmann::json& run, const char* key) {
  return run.contains(key) && run[key].is_string() ? run[key].get<std::string>() : "";
}

// Why a run is not compared; empty if it is.
std::string ReasonToSkip(const nlohmann::json& run) {
  if (run.contains("error")) return "the recorded code stops with an error";
  for (const auto& setting : run.items()) {
    if (KnownSettings().count(setting.key()) == 0) {
      return absl::StrCat("setting '", setting.key(), "' is not known here");
    }
  }
  const std::string rep = Word(run, "rep");
  const std::string opt = Word(run, "opt");
  const std::set<std::string> known = {"demo", "random", "striding", "slicing", "full", "none"};
  if (known.count(rep) == 0) return absl::StrCat("replicator '", rep, "' is not known here");
  if (opt != "sgd" && opt != "orig" && opt != "adamw") {
    return absl::StrCat("base step '", opt, "' is not built");
  }
  if (Number(run, "wd", 0) != 0 && Number(run, "sgd_wd", 0) != 0) {
    return "two weight decays at once are not built";
  }
  if (Number(run, "chunk", 0) > kChunkSideMax) {
    return absl::StrCat("a chunk side above ", kChunkSideMax, " is not built");
  }
  return "";
}

struct Run {
  std::string name;
  std::string arrays;  // prefix of its arrays
  std::string inputs;  // prefix of start values and gradients
  DemoRunOptions options;
  uint64_t steps = 0;

  size_t nodes() const { return static_cast<size_t>(options.spec.nodes_size()); }
};

// The defaults of the optimizer class that the recordings used; they name its decay only.
void SetPublishedAdamW(v1::OptimizerSpec* optimizer) {
  optimizer->set_base(v1::BASE_OPTIMIZER_ADAMW);
  optimizer->set_beta1(0.9f);
  optimizer->set_beta2(0.999f);
  optimizer->set_eps(1e-8f);
}

v1::CodecKind KindOf(const std::string& rep) {
  if (rep == "random") return v1::CODEC_KIND_RANDOM;
  if (rep == "striding") return v1::CODEC_KIND_STRIDING;
  if (rep == "slicing") return v1::CODEC_KIND_SLICING;
  if (rep == "full") return v1::CODEC_KIND_DENSE;
  return rep == "none" ? v1::CODEC_KIND_NONE : v1::CODEC_KIND_DEMO;
}

v1::CodecSpec CodecOf(const nlohmann::json& json) {
  v1::CodecSpec codec = PublishedCodec(static_cast<uint32_t>(Number(json, "chunk", 64)), 0);
  codec.set_kind(KindOf(Word(json, "rep")));
  codec.set_sign(json.value("sign", true));
  if (HasMomentum(codec)) codec.set_beta(static_cast<float>(Number(json, "decay", 0.999)));
  if (SendsRows(codec)) codec.set_rate(Number(json, "rate", 0.1));
  if (codec.kind() == v1::CODEC_KIND_DEMO) {
    codec.set_top_k(static_cast<uint32_t>(Number(json, "k", 32)));
  }
  // The stand-alone optimizer has no shortcut for a node alone.
  if (Word(json, "opt") != "orig") codec.set_rules(v1::METHOD_RULES_PUBLISHED);
  return codec;
}

absl::StatusOr<Run> ParseRun(const nlohmann::json& json) {
  Run run;
  run.name = Word(json, "name");
  run.steps = static_cast<uint64_t>(Number(json, "steps", 0));
  const auto nodes = static_cast<size_t>(Number(json, "nodes", 0));
  v1::RunSpec& spec = run.options.spec;
  spec = RecordedSpec(nodes, Number(json, "lr", 0), std::max<uint64_t>(1, run.steps));
  *spec.mutable_codec() = CodecOf(json);
  spec.mutable_optimizer()->set_base(v1::BASE_OPTIMIZER_SGD);
  if (Word(json, "opt") == "adamw") SetPublishedAdamW(spec.mutable_optimizer());
  // At most one of them is there.
  spec.mutable_optimizer()->set_weight_decay(static_cast<float>(
      Number(json, "wd", 0) + Number(json, "adamw_wd", 0) + Number(json, "sgd_wd", 0)));
  spec.mutable_schedule()->set_every(static_cast<uint32_t>(Number(json, "every", 0)));
  spec.mutable_schedule()->set_skip(static_cast<uint32_t>(Number(json, "skip", 0)));
  spec.set_allow_drift(spec.codec().kind() == v1::CODEC_KIND_NONE || HasStepsAlone(spec));
  if (run.steps == 0 || nodes == 0) {
    return absl::InvalidArgumentError("the run has no steps or no nodes");
  }
  const nlohmann::json shapes = json.value("shapes", nlohmann::json::object());
  for (const auto& tensor : shapes.items()) {
    ISTHMUS_ASSIGN_OR_RETURN(auto shape, ShapeOf(tensor.value()));
    run.options.tensors.push_back({tensor.key(), std::move(shape)});
  }
  return run;
}

// Finds where the run's arrays and inputs lie: FILE trajectories has those of "nodesN", FILE
// trajectory_X those of "X". False if no file has the run.
bool LocateRun(const VectorFile& file, Run* run) {
  for (const std::string& folder : file.Children("")) {
    if (!absl::StartsWith(folder, "trajector") || folder == "trajectory_inputs") continue;
    run->arrays = absl::StrCat(folder, "/", run->name, "/");
    if (file.NamesUnder(run->arrays).empty()) continue;
    run->inputs = "trajectory_inputs/";
    if (folder == "trajectories") {
      absl::StrAppend(&run->inputs, "nodes", run->nodes(), "/");
    } else {
      absl::StrAppend(&run->inputs, absl::StripPrefix(folder, "trajectory_"), "/");
    }
    return true;
  }
  return false;
}

using Gradients = std::vector<std::vector<absl::Span<const float>>>;

absl::StatusOr<Gradients> ReadGradients(const VectorFile& file, const Run& run, uint64_t step) {
  Gradients gradients(run.nodes());
  for (size_t node = 0; node < gradients.size(); ++node) {
    for (const NamedShape& tensor : run.options.tensors) {
      ISTHMUS_ASSIGN_OR_RETURN(const auto g, file.Floats(absl::StrCat(run.inputs, "s", step, "/n",
                                                                      node, "/g/", tensor.name)));
      gradients[node].push_back(g);
    }
  }
  return gradients;
}

double ComponentTolerance(const Components& recorded) {
  float largest = kResidualMax;
  for (const float value : recorded.value) largest = std::max(largest, std::fabs(value));
  return kResidualTolerance * largest / kResidualMax;
}

// Indices and values of all chunks of a tensor, in the recorded order.
absl::Status CompareSent(const VectorFile& file, const DemoRun& demo, size_t node, uint32_t tensor,
                         const std::string& prefix, Comparison* comparison) {
  const std::string& name = demo.grid().tensor_name(tensor);
  const std::vector<ChunkPlace> places = PlacesOf(demo.grid(), tensor);
  ISTHMUS_ASSIGN_OR_RETURN(const auto recorded,
                           RecordedComponents(file, absl::StrCat(prefix, "idx/", name),
                                              absl::StrCat(prefix, "val/", name), places));
  const uint64_t first = demo.grid().blocks()[demo.grid().tensor_first_block(tensor)].first_chunk;
  for (size_t c = 0; c < recorded.size(); ++c) {
    const Components& sent = demo.sent(node, first + c);
    const std::string what = absl::StrCat(prefix, "val/", name, " of chunk ", c);
    comparison->Expect(sent.index == recorded[c].index,
                       absl::StrCat(what, ": other indices than recorded"));
    if (sent.index != recorded[c].index) continue;
    comparison->Near(what, ComponentTolerance(recorded[c]), sent.value, recorded[c].value);
  }
  return absl::OkStatus();
}

// The rows that were drawn for tensors of so many rows, where they are recorded.
absl::Status CompareRows(const VectorFile& file, const Run& run, const DemoRun& demo,
                         const std::string& at_step, uint32_t tensor, Comparison* comparison) {
  const uint64_t n = demo.grid().tensor_elements(tensor) / demo.grid().tensor_row_elements(tensor);
  const std::string what = absl::StrCat(at_step, "rows/", n);
  if (file.Find(what) == nullptr) return absl::OkStatus();
  ISTHMUS_ASSIGN_OR_RETURN(const auto recorded, file.Integers(what));
  std::set<int64_t> drawn, expected(recorded.begin(), recorded.end());
  for (const uint32_t row : demo.rows(tensor)) drawn.insert(row);
  comparison->Expect(drawn == expected,
                     absl::StrCat(what, ": other rows than recorded in ", run.name));
  return absl::OkStatus();
}

// Everything that is recorded of one tensor after one step.
absl::Status CompareStep(const VectorFile& file, const Run& run, const DemoRun& demo, uint64_t step,
                         uint32_t tensor, Comparison* comparison) {
  const std::string& name = demo.grid().tensor_name(tensor);
  const VectorArray* ambiguous = file.Find(absl::StrCat(run.arrays, "ambiguous/", name));
  const bool sign = run.options.spec.codec().sign();
  const std::string at_step = absl::StrCat(run.arrays, "s", step, "/");
  const auto compare = [&](const std::string& what, double tolerance, absl::Span<const float> ours,
                           absl::Span<const int64_t> left_out) {
    if (file.Find(what) == nullptr) return absl::OkStatus();  // not recorded at this step
    ISTHMUS_ASSIGN_OR_RETURN(const auto recorded, file.Floats(what));
    comparison->Near(what, tolerance, ours, recorded, left_out);
    return absl::OkStatus();
  };
  ISTHMUS_RETURN_IF_ERROR(CompareRows(file, run, demo, at_step, tensor, comparison));
  ISTHMUS_RETURN_IF_ERROR(
      compare(absl::StrCat(at_step, "update/", name), kUpdateTolerance, demo.update(tensor), {}));
  for (size_t node = 0; node < run.nodes(); ++node) {
    const std::string at_node = absl::StrCat(at_step, "n", node, "/");
    ISTHMUS_RETURN_IF_ERROR(compare(
        absl::StrCat(at_node, "p/", name), sign ? kSignedParameterTolerance : kParameterTolerance,
        demo.parameters(node, tensor),
        ambiguous == nullptr ? absl::Span<const int64_t>() : ambiguous->integers));
    if (!demo.residual(node, tensor).empty()) {
      ISTHMUS_RETURN_IF_ERROR(compare(absl::StrCat(at_node, "delta/", name), kResidualTolerance,
                                      demo.residual(node, tensor), {}));
    }
    if (file.Find(absl::StrCat(at_node, "idx/", name)) != nullptr) {
      ISTHMUS_RETURN_IF_ERROR(CompareSent(file, demo, node, tensor, at_node, comparison));
    }
    if (!run.options.spec.allow_drift()) {
      comparison->Expect(demo.parameters(node, tensor) == demo.parameters(0, tensor),
                         absl::StrCat(name, " differs between nodes 0 and ", node));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckRun(const VectorFile& file, const Run& run, Comparison* comparison) {
  std::vector<std::vector<float>> start;
  for (const NamedShape& tensor : run.options.tensors) {
    ISTHMUS_ASSIGN_OR_RETURN(const auto p,
                             file.Floats(absl::StrCat(run.inputs, "p0/", tensor.name)));
    start.emplace_back(p.begin(), p.end());
  }
  ISTHMUS_ASSIGN_OR_RETURN(const auto demo, DemoRun::Start(run.options, std::move(start)));
  for (uint64_t step = 1; step <= run.steps; ++step) {
    ISTHMUS_ASSIGN_OR_RETURN(const Gradients gradients, ReadGradients(file, run, step));
    ISTHMUS_RETURN_IF_ERROR(demo->Step(gradients));
    for (uint32_t tensor = 0; tensor < demo->grid().tensors(); ++tensor) {
      ISTHMUS_RETURN_IF_ERROR(CompareStep(file, run, *demo, step, tensor, comparison));
    }
  }
  return absl::OkStatus();
}

Comparison CheckTrajectory(const VectorFile& file, const nlohmann::json& json) {
  Comparison comparison(Word(json, "name"));
  const std::string reason = ReasonToSkip(json);
  if (!reason.empty()) {
    comparison.Skip(reason);
    return comparison;
  }
  absl::StatusOr<Run> run = ParseRun(json);
  if (!run.ok()) {
    comparison.Expect(run.status());
  } else if (!LocateRun(file, &*run)) {
    comparison.Skip("no file holds arrays of this run");
  } else {
    comparison.Expect(CheckRun(file, *run, &comparison));
  }
  return comparison;
}

// --- fsdp_hybrid_RxS: R nodes, each with one flat vector cut over S ranks.

struct Hybrid {
  std::string prefix;
  uint64_t nodes = 0;
  uint64_t shards = 0;
  uint64_t steps = 0;
  uint64_t length = 0;  // of a shard, padded

  std::string At(uint64_t node, uint64_t shard) const {
    return absl::StrCat(prefix, "node", node, "/shard", shard, "/");
  }
};

// A rank's gradient: its slice of the mean of the unsharded gradients over the node's ranks, padded
// with zeros.
absl::StatusOr<std::vector<std::vector<float>>> ShardGradients(const VectorFile& file,
                                                               const Hybrid& hybrid, uint64_t node,
                                                               uint64_t step) {
  std::vector<float> sum(hybrid.shards * hybrid.length, 0.0f);
  for (uint64_t shard = 0; shard < hybrid.shards; ++shard) {
    ISTHMUS_ASSIGN_OR_RETURN(const auto g, file.Floats(absl::StrCat(hybrid.At(node, shard), "s",
                                                                    step, "/unsharded_grad")));
    if (g.size() > sum.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("a gradient has ", g.size(), " elements, the shards have ", sum.size()));
    }
    for (size_t i = 0; i < g.size(); ++i) sum[i] += g[i];
  }
  std::vector<std::vector<float>> slices;
  for (uint64_t shard = 0; shard < hybrid.shards; ++shard) {
    const float* first = sum.data() + shard * hybrid.length;
    slices.emplace_back(first, first + hybrid.length);
    for (float& value : slices.back()) value /= static_cast<float>(hybrid.shards);
  }
  return slices;
}

absl::Status RunHybrid(const VectorFile& file, const Hybrid& hybrid, Comparison* comparison) {
  DemoRunOptions options;  // as the recordings state: they are the same for every such file
  options.spec = RecordedSpec(hybrid.nodes, 0.01, hybrid.steps);
  *options.spec.mutable_codec() = PublishedCodec(16, 4);
  options.spec.mutable_codec()->set_beta(0.999f);
  options.spec.mutable_codec()->set_sign(true);
  std::vector<std::vector<float>> start;
  for (uint64_t shard = 0; shard < hybrid.shards; ++shard) {
    options.tensors.push_back({absl::StrCat("shard", shard), {hybrid.length}});
    ISTHMUS_ASSIGN_OR_RETURN(const auto p, file.Floats(hybrid.At(0, shard) + "p0"));
    start.emplace_back(p.begin(), p.end());
  }
  ISTHMUS_ASSIGN_OR_RETURN(const auto demo, DemoRun::Start(options, std::move(start)));
  // No mask is recorded here, so it is made by the rule of the others.
  std::vector<std::vector<int64_t>> ambiguous(hybrid.shards, std::vector<int64_t>(hybrid.length));
  for (uint64_t step = 1; step <= hybrid.steps; ++step) {
    std::vector<std::vector<std::vector<float>>> slices;
    Gradients gradients(hybrid.nodes);
    for (uint64_t node = 0; node < hybrid.nodes; ++node) {
      ISTHMUS_ASSIGN_OR_RETURN(auto own, ShardGradients(file, hybrid, node, step));
      slices.push_back(std::move(own));
      for (const std::vector<float>& slice : slices.back()) gradients[node].push_back(slice);
    }
    ISTHMUS_RETURN_IF_ERROR(demo->Step(gradients));
    for (uint64_t shard = 0; shard < hybrid.shards; ++shard) {
      float largest = 0;
      for (const float u : demo->update(shard)) largest = std::max(largest, std::fabs(u));
      for (size_t i = 0; i < hybrid.length; ++i) {
        const float u = std::fabs(demo->update(shard)[i]);
        // An exact 0 (padding) has a sign that everybody agrees on.
        if (u != 0 && u < kAmbiguousShare * largest) ambiguous[shard][i] = 1;
      }
      for (uint64_t node = 0; node < hybrid.nodes; ++node) {
        const std::string at = absl::StrCat(hybrid.At(node, shard), "s", step, "/");
        ISTHMUS_ASSIGN_OR_RETURN(const auto p, file.Floats(at + "shard_param"));
        ISTHMUS_ASSIGN_OR_RETURN(const auto delta, file.Floats(at + "shard_delta"));
        comparison->Near(at + "shard_param", kSignedParameterTolerance,
                         demo->parameters(node, shard), p, ambiguous[shard]);
        comparison->Near(at + "shard_delta", kResidualTolerance, demo->residual(node, shard),
                         delta);
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<Comparison> CheckTrajectories(const VectorFile& file) {
  std::vector<Comparison> comparisons;
  const absl::StatusOr<nlohmann::json> json = RecordedJson(file, "trajectories.json");
  if (!json.ok() || json->empty()) {
    comparisons.emplace_back("trajectories");
    if (json.ok()) {
      comparisons.back().Skip("there is no trajectories.json or it is empty");
    } else {
      comparisons.back().Expect(json.status());
    }
    return comparisons;
  }
  for (const nlohmann::json& run : *json) comparisons.push_back(CheckTrajectory(file, run));
  return comparisons;
}

Comparison CheckFsdpHybrid(const VectorFile& file, const std::string& name) {
  Comparison comparison(name);
  Hybrid hybrid;
  hybrid.prefix = name + "/";
  hybrid.nodes = file.Children(hybrid.prefix + "node").size();
  hybrid.shards = file.Children(hybrid.prefix + "node0/shard").size();
  hybrid.steps = file.Children(hybrid.prefix + "node0/shard0/s").size();
  const VectorArray* start = file.Find(hybrid.At(0, 0) + "p0");
  if (start != nullptr) hybrid.length = start->floats.size();
  comparison.Expect(hybrid.length > 0, absl::StrCat(hybrid.At(0, 0), "p0 is missing or empty"));
  if (hybrid.length > 0) comparison.Expect(RunHybrid(file, hybrid, &comparison));
  return comparison;
}

}  // namespace isthmus
