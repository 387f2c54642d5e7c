#include "tests/vectors/demo_run.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/demo.h"
#include "server/fold.h"
#include "spec/piece.h"
#include "spec/run_spec.h"

namespace isthmus {
namespace {

template <typename T, typename Vectors>
std::vector<TensorPart<T>> WholeTensors(Vectors& vectors) {
  std::vector<TensorPart<T>> parts;
  for (uint32_t i = 0; i < vectors.size(); ++i) {
    parts.push_back({i, 0, absl::Span<T>(vectors[i].data(), vectors[i].size())});
  }
  return parts;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DemoRun>> DemoRun::Start(const DemoRunOptions& options,
                                                        std::vector<std::vector<float>> start) {
  std::unique_ptr<DemoRun> run(new DemoRun());
  run->options_ = options;
  ISTHMUS_RETURN_IF_ERROR(CompleteCodecSpec(&run->options_.codec));
  ISTHMUS_ASSIGN_OR_RETURN(Grid grid, MakeGrid(options.tensors, run->options_.codec));
  run->grid_ = std::make_shared<const Grid>(std::move(grid));
  for (uint32_t i = 0; i < run->grid_->tensors(); ++i) {
    if (start[i].size() != run->grid_->tensor_elements(i)) {
      return absl::InvalidArgumentError(
          absl::StrCat("the start value of ", run->grid_->tensor_name(i), " has ", start[i].size(),
                       " elements, its shape ", run->grid_->tensor_elements(i)));
    }
    run->update_.emplace_back(start[i].size());
  }
  MethodOptions method_options;
  method_options.grid = run->grid_.get();
  method_options.codec = run->options_.codec;
  method_options.optimizer = options.optimizer;
  if (options.optimizer.base() == v1::BASE_OPTIMIZER_UNSPECIFIED) {
    method_options.optimizer.set_base(v1::BASE_OPTIMIZER_SGD);
  }
  for (size_t i = 0; i < options.nodes; ++i) {
    ISTHMUS_ASSIGN_OR_RETURN(
        std::unique_ptr<Method> method,
        MakeMethod(method_options, WholeTensors<const float>(std::as_const(start))));
    const auto* const demo = dynamic_cast<const DemoShard*>(method.get());
    run->nodes_.push_back({std::move(method), demo, start, {}});
  }
  return run;
}

absl::StatusOr<std::vector<HeldPiece>> DemoRun::Contribute(
    size_t node, const std::vector<absl::Span<const float>>& gradients) {
  ISTHMUS_ASSIGN_OR_RETURN(
      std::vector<std::string> pieces,
      nodes_[node].method->Encode(round_, options_.lr, WholeTensors<const float>(gradients)));
  nodes_[node].sent.assign(grid_->chunks(), {});
  std::vector<HeldPiece> held;
  for (std::string& bytes : pieces) {
    ISTHMUS_ASSIGN_OR_RETURN(HeldPiece piece, CheckContributionPiece(*grid_, std::move(bytes)));
    ISTHMUS_ASSIGN_OR_RETURN(const PieceView view, OpenPiece(*grid_, *piece.bytes));
    const auto keep = [&](uint64_t chunk, const Components& components) {
      nodes_[node].sent[chunk] = components;
      return absl::OkStatus();
    };
    ISTHMUS_RETURN_IF_ERROR(ForEachChunk(*grid_, view, keep));
    held.push_back(std::move(piece));
  }
  return held;
}

absl::Status DemoRun::KeepUpdate(const std::vector<std::string>& pieces) {
  for (std::vector<float>& tensor : update_) std::fill(tensor.begin(), tensor.end(), 0.0f);
  const auto keep = [&](uint64_t chunk, const Components& components) {
    const ChunkPlace place = grid_->Place(chunk);
    std::vector<float> x(place.shape.elements());
    if (options_.codec.kind() == v1::CODEC_KIND_DEMO) {
      DecodeComponents(place.shape, components, absl::MakeSpan(x));
    } else {
      for (size_t i = 0; i < components.size(); ++i) x[components.index[i]] = components.value[i];
    }
    AddScaledChunk(place.shape, 1.0f, x, update_[place.tensor].data() + place.first_element,
                   place.stride);
    return absl::OkStatus();
  };
  for (const std::string& bytes : pieces) {
    ISTHMUS_ASSIGN_OR_RETURN(const PieceView view, OpenPiece(*grid_, bytes));
    ISTHMUS_RETURN_IF_ERROR(ForEachChunk(*grid_, view, keep));
  }
  return absl::OkStatus();
}

void DemoRun::StepWithBaseDecay(Node* node) const {
  for (size_t i = 0; i < update_.size(); ++i) {
    std::vector<float> u = update_[i];
    if (options_.codec.sign()) SignInPlace(absl::MakeSpan(u));
    const std::vector<float>& p = node->parameters[i];
    for (size_t at = 0; at < u.size(); ++at) u[at] += options_.base_weight_decay * p[at];
    SgdStep(options_.lr, u, absl::MakeSpan(node->parameters[i]));
  }
}

absl::Status DemoRun::Step(const std::vector<std::vector<absl::Span<const float>>>& gradients) {
  ++round_;
  std::vector<std::vector<HeldPiece>> contributions;
  for (size_t node = 0; node < nodes_.size(); ++node) {
    ISTHMUS_ASSIGN_OR_RETURN(auto held, Contribute(node, gradients[node]));
    contributions.push_back(std::move(held));
  }
  const FoldedUpdate folded = FoldContributions(*grid_, ContributionSizes(grid_), contributions, 1);
  const std::vector<std::string>& pieces = folded.pieces;
  ISTHMUS_RETURN_IF_ERROR(KeepUpdate(pieces));
  std::vector<const std::string*> update;
  for (const std::string& bytes : pieces) update.push_back(&bytes);
  for (Node& node : nodes_) {
    node.method->Settle(round_, true);
    if (options_.base_weight_decay != 0) {
      StepWithBaseDecay(&node);
      continue;
    }
    ISTHMUS_RETURN_IF_ERROR(node.method->Apply({options_.lr, options_.weight_decay, folded.norm},
                                               update, WholeTensors<float>(node.parameters)));
  }
  return absl::OkStatus();
}

}  // namespace isthmus
