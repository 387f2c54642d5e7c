#include "tests/vectors/demo_run.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/demo.h"
#include "server/fold.h"
#include "spec/piece.h"
#include "spec/rounds.h"
#include "spec/rows.h"
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

v1::RunSpec RecordedSpec(size_t nodes, double lr, uint64_t steps) {
  v1::RunSpec spec;
  spec.set_run("recorded");
  spec.set_steps(steps);
  for (size_t i = 0; i < nodes; ++i) spec.add_nodes()->set_name(absl::StrCat("n", i));
  spec.mutable_optimizer()->set_lr(static_cast<float>(lr));
  spec.mutable_optimizer()->set_lr_final_ratio(1);
  return spec;
}

absl::StatusOr<std::unique_ptr<DemoRun>> DemoRun::Start(const DemoRunOptions& options,
                                                        std::vector<std::vector<float>> start) {
  std::unique_ptr<DemoRun> run(new DemoRun());
  run->options_ = options;
  ISTHMUS_RETURN_IF_ERROR(CompleteRunSpec(&run->options_.spec));
  const v1::RunSpec& spec = run->options_.spec;
  ISTHMUS_ASSIGN_OR_RETURN(Grid grid, MakeGrid(options.tensors, spec.codec()));
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
  method_options.codec = spec.codec();
  method_options.optimizer = spec.optimizer();
  method_options.seed = spec.seed();
  method_options.drifts = spec.allow_drift();
  for (int i = 0; i < spec.nodes_size(); ++i) {
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
  ISTHMUS_ASSIGN_OR_RETURN(std::vector<std::string> pieces,
                           nodes_[node].method->Encode(round_, options_.spec.optimizer().lr(),
                                                       WholeTensors<const float>(gradients)));
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
  const v1::CodecSpec& codec = options_.spec.codec();
  const auto keep = [&](uint64_t chunk, const Components& components) {
    const ChunkPlace place = grid_->Place(chunk);
    std::vector<float> x(place.shape.elements());
    if (codec.kind() == v1::CODEC_KIND_DEMO) {
      DecodeComponents(place.shape, components, absl::MakeSpan(x));
    } else if (SendsRows(codec)) {
      const auto elements = RowChoice(grid_.get(), options_.spec.seed(), round_).Elements(place);
      for (size_t i = 0; i < elements.size(); ++i) x[elements[i]] = components.value[i];
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

absl::Status DemoRun::StepAlone(
    const std::vector<std::vector<absl::Span<const float>>>& gradients) {
  for (size_t i = 0; i < update_.size(); ++i) {
    update_[i].assign(gradients[0][i].begin(), gradients[0][i].end());
  }
  const v1::OptimizerSpec& optimizer = options_.spec.optimizer();
  for (size_t i = 0; i < nodes_.size(); ++i) {
    ISTHMUS_RETURN_IF_ERROR(nodes_[i].method->StepAlone({optimizer.lr(), optimizer.weight_decay()},
                                                        WholeTensors<const float>(gradients[i]),
                                                        WholeTensors<float>(nodes_[i].parameters)));
  }
  return absl::OkStatus();
}

absl::Status DemoRun::Step(const std::vector<std::vector<absl::Span<const float>>>& gradients) {
  if (!ExchangesAt(options_.spec.schedule(), ++step_)) return StepAlone(gradients);
  ++round_;
  std::vector<std::vector<HeldPiece>> contributions;
  for (size_t node = 0; node < nodes_.size(); ++node) {
    ISTHMUS_ASSIGN_OR_RETURN(auto held, Contribute(node, gradients[node]));
    contributions.push_back(std::move(held));
  }
  const FoldedUpdate folded = FoldContributions(*grid_, contributions, 1);
  const std::vector<std::string>& pieces = folded.pieces;
  ISTHMUS_RETURN_IF_ERROR(KeepUpdate(pieces));
  std::vector<const std::string*> update;
  for (const std::string& bytes : pieces) update.push_back(&bytes);
  const v1::OptimizerSpec& optimizer = options_.spec.optimizer();
  const UpdateRates rates = {optimizer.lr(), optimizer.weight_decay(), folded.norm, round_};
  for (Node& node : nodes_) {
    node.method->Settle(round_, true);
    ISTHMUS_RETURN_IF_ERROR(
        node.method->Apply(rates, update, WholeTensors<float>(node.parameters)));
  }
  return absl::OkStatus();
}

std::vector<uint32_t> DemoRun::rows(uint32_t tensor) const {
  const Block& block = grid_->blocks()[grid_->tensor_first_block(tensor)];
  return RowChoice(grid_.get(), options_.spec.seed(), round_).Rows(grid_->Place(block.first_chunk));
}

}  // namespace isthmus
