#include "worker/replica.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/softmax.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <random>
#include <utility>

#include "absl/base/casts.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/limits.h"
#include "base/sha256.h"
#include "base/status_macros.h"
#include "spec/manifest.h"
#include "spec/piece_cut.h"
#include "spec/rounds.h"
#include "worker/batch.h"
#include "worker/checkpoint.h"
#include "worker/gpt2.h"
#include "worker/state_hash.h"
#include "worker/torch_status.h"

namespace isthmus {
namespace {

constexpr double kSampleTemperature = 0.8;

std::vector<NamedShape> ShapesOf(const std::vector<ModelTensor>& tensors) {
  std::vector<NamedShape> shapes;
  for (const ModelTensor& tensor : tensors) shapes.push_back({tensor.name, tensor.shape});
  return shapes;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Replica>> Replica::Make(const ReplicaOptions& options) {
  ISTHMUS_ASSIGN_OR_RETURN(Model model, MakeGpt2(options.spec.model()));
  uint64_t bytes = 0;
  for (const ModelTensor& tensor : model.tensors) {
    uint64_t elements = 1;
    for (int64_t size : tensor.shape) elements *= static_cast<uint64_t>(size);
    bytes += elements * sizeof(float);
  }
  auto replica = std::unique_ptr<Replica>(new Replica(options));
  ShardedModelOptions sharding;
  sharding.group = options.group;
  sharding.codec = options.spec.codec();
  sharding.reshard_after_forward = bytes > kKeepGatheredBytesMax;
  sharding.placement.device = options.device;
  ISTHMUS_ASSIGN_OR_RETURN(replica->model_, ShardedModel::Make(std::move(model), sharding));
  ISTHMUS_RETURN_IF_ERROR(replica->FillStartState());
  ISTHMUS_RETURN_IF_ERROR(replica->MakeMethods());
  return replica;
}

absl::Status Replica::MakeMethods() {
  const std::vector<TensorPart<const float>> parts = AsConst(model_->parameters());
  MethodOptions method;
  method.grid = &model_->grid();
  method.codec = options_.spec.codec();
  method.optimizer = options_.spec.optimizer();
  method.seed = options_.spec.seed();
  method.drifts = options_.spec.allow_drift();
  if (IsOuter(options_.spec)) method.outer = options_.spec;
  method.threads = options_.threads;
  ISTHMUS_ASSIGN_OR_RETURN(method_, MakeMethod(method, parts));
  if (!TakesLocalSteps(options_.spec)) return absl::OkStatus();
  InnerOptimizerOptions inner;
  inner.grid = &model_->grid();
  inner.optimizer = options_.spec.optimizer();
  inner.threads = options_.threads;
  ISTHMUS_ASSIGN_OR_RETURN(inner_, InnerOptimizer::Make(inner, parts));
  return absl::OkStatus();
}

absl::Status Replica::TakeSpec(const v1::RunSpec& spec) {
  ISTHMUS_RETURN_IF_ERROR(model_->TakeCodec(spec.codec()));
  method_->TakeSpec(spec);
  if (inner_.has_value()) inner_->TakeRates(spec.optimizer());
  options_.spec = spec;
  return absl::OkStatus();
}

absl::Status Replica::FillStartState() {
  if (options_.start_file.empty()) {
    return model_->Fill(
        [this](const ModelTensor& tensor, uint64_t first, absl::Span<float> values) {
          InitializeGpt2(options_.spec.model(), options_.spec.seed(), tensor.name, first, values);
          return absl::OkStatus();
        });
  }
  ISTHMUS_ASSIGN_OR_RETURN(const auto file, Checkpoint::Open(options_.start_file));
  ISTHMUS_RETURN_IF_ERROR(file->Check(options_.spec.model(), ShapesOf(model_->tensors())));
  return model_->Fill([&](const ModelTensor& tensor, uint64_t first, absl::Span<float> values) {
    return file->Read(tensor.name, first, values);
  });
}

absl::StatusOr<v1::SnapshotFacts> Replica::StateFacts(uint64_t step) {
  v1::SnapshotFacts facts;
  facts.set_step(step);
  facts.set_elements(model_->grid().elements());
  facts.set_fingerprint(Fingerprint(model_->manifest()));
  ISTHMUS_ASSIGN_OR_RETURN(*facts.mutable_frozen_sha256(), FrozenSha256());
  const Sections sections = method_->StateSections(AsConst(model_->parameters()));
  facts.set_sections(static_cast<uint32_t>(sections.size()));
  // Without moments nothing reads them, and the hash does not cover them.
  const bool has_powers = sections.size() > 1;
  const StepState step_state = method_->step_state();
  facts.set_beta1_power_bits(absl::bit_cast<uint64_t>(has_powers ? step_state.beta1_power : 1.0));
  facts.set_beta2_power_bits(absl::bit_cast<uint64_t>(has_powers ? step_state.beta2_power : 1.0));
  std::vector<TensorPart<const float>> parts = AsConst(model_->parameters());
  std::vector<std::string> hashes;
  for (const auto& section : sections) {
    for (size_t i = 0; i < parts.size(); ++i) parts[i].data = section[i];
    ISTHMUS_ASSIGN_OR_RETURN(const std::string hash, SectionOf(parts, step));
    hashes.push_back(hash);
  }
  facts.set_state_sha256(isthmus::StateSha256(hashes, facts));
  return facts;
}

absl::StatusOr<std::string> Replica::StateSha256(uint64_t step) {
  ISTHMUS_ASSIGN_OR_RETURN(const v1::SnapshotFacts facts, StateFacts(step));
  return facts.state_sha256();
}

absl::StatusOr<std::string> Replica::SectionOf(const std::vector<TensorPart<const float>>& parts,
                                               uint64_t step) {
  const Grid& grid = model_->grid();
  std::string hashes(grid.blocks().size() * kSha256Bytes, '\0');
  for (const TensorPart<const float>& part : parts) {
    ISTHMUS_ASSIGN_OR_RETURN(
        const BlockSpan blocks,
        BlocksOfPart(grid, {part.tensor, part.first_element, part.data.size()}));
    ISTHMUS_ASSIGN_OR_RETURN(const std::string own, HashBlocks(grid, part, options_.threads));
    std::copy(own.begin(), own.end(), hashes.begin() + blocks.first * kSha256Bytes);
  }
  ISTHMUS_RETURN_IF_ERROR(options_.group->JoinBytes(&hashes));
  return SectionSha256(grid, hashes, step);
}

absl::StatusOr<std::string> Replica::FrozenSha256() {
  const auto is_frozen = [](const ModelTensor& tensor) { return tensor.frozen; };
  const auto& tensors = model_->tensors();
  if (std::none_of(tensors.begin(), tensors.end(), is_frozen)) return std::string();
  if (frozen_sha256_.empty()) {  // they never change
    Sha256 hash;
    ISTHMUS_RETURN_IF_ERROR(
        model_->VisitFullTensors([&](const ModelTensor& tensor, absl::Span<const float> values) {
          if (!tensor.frozen) return absl::OkStatus();
          hash.UpdateSized(tensor.name);
          hash.Update(values.data(), values.size() * sizeof(float));
          return absl::OkStatus();
        }));
    frozen_sha256_ = hash.Finish();
  }
  return frozen_sha256_;
}

std::vector<StatePart> Replica::StateParts() {
  std::vector<StatePart> parts;
  for (const TensorPart<float>& part : model_->parameters()) {
    parts.push_back(
        {model_->grid().tensor_name(part.tensor), part.first_element, part.data.size()});
  }
  return parts;
}

TrainState Replica::State() {
  TrainState state;
  state.parts = StateParts();
  for (const TensorPart<float>& part : model_->parameters()) {
    state.parameters.emplace_back(part.data.begin(), part.data.end());
  }
  state.method = method_->State();
  if (inner_.has_value()) state.inner = inner_->state();
  return state;
}

absl::Status Replica::SetState(TrainState state) {
  const std::vector<TensorPart<float>> parameters = model_->parameters();
  if (state.parameters.size() != parameters.size()) {
    return absl::InvalidArgumentError(absl::StrCat("a state has ", state.parameters.size(),
                                                   " parts of tensors, this rank holds ",
                                                   parameters.size()));
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (state.parameters[i].size() == parameters[i].data.size()) continue;
    return absl::InvalidArgumentError(absl::StrCat("part ", i, " of a state has ",
                                                   state.parameters[i].size(), " values, it holds ",
                                                   parameters[i].data.size()));
  }
  if (state.method.x.empty()) {  // the parameters hold no more than x
    std::vector<TensorPart<const float>> x = AsConst(parameters);
    for (size_t i = 0; i < x.size(); ++i) x[i].data = state.parameters[i];
    ISTHMUS_RETURN_IF_ERROR(method_->StartAt(x));
  }
  // Of a set of another number of ranks the pieces of all are there.
  for (PendingContribution& sent : state.method.pending) {
    for (std::vector<std::string>* pieces : {&sent.pieces, &sent.taken}) {
      ISTHMUS_ASSIGN_OR_RETURN(*pieces,
                               CutPieces(model_->grid(), method_->ranges(), std::move(*pieces)));
    }
  }
  ISTHMUS_RETURN_IF_ERROR(method_->SetState(std::move(state.method)));
  if (inner_.has_value()) ISTHMUS_RETURN_IF_ERROR(inner_->SetState(std::move(state.inner)));
  for (size_t i = 0; i < parameters.size(); ++i) {
    std::copy(state.parameters[i].begin(), state.parameters[i].end(), parameters[i].data.begin());
  }
  model_->ParametersChanged();
  return absl::OkStatus();
}

absl::Status Replica::Save(const std::string& path) {
  return OnShared([&] { return SaveTensors(path); });
}

absl::Status Replica::SaveTensors(const std::string& path) {
  std::unique_ptr<CheckpointWriter> writer;
  absl::Status written;
  if (options_.group->rank() == 0) {
    auto created =
        CheckpointWriter::Create(path, options_.spec.model(), ShapesOf(model_->tensors()));
    if (created.ok()) writer = std::move(created).value();
    written = created.status();
  }
  // A file that cannot be written must not leave the other ranks waiting in the gathers.
  ISTHMUS_RETURN_IF_ERROR(
      model_->VisitFullTensors([&](const ModelTensor&, absl::Span<const float> values) {
        if (writer != nullptr && written.ok()) written = writer->Write(values);
        return absl::OkStatus();
      }));
  if (writer != nullptr && written.ok()) written = writer->Finish();
  return written;
}

absl::StatusOr<double> Replica::ForwardBackward(const TokenRows& rows) {
  const auto look = static_cast<float>(options_.spec.look());
  if (look == 0) return model_->ForwardBackward(ToBatch(rows), options_.micro_batch);
  const std::vector<TensorPart<float>> parameters = model_->parameters();
  settled_.resize(parameters.size());
  for (size_t i = 0; i < parameters.size(); ++i) {
    settled_[i].assign(parameters[i].data.begin(), parameters[i].data.end());
  }
  absl::StatusOr<double> loss = method_->LookAhead(look, parameters).ok()
                                    ? absl::StatusOr<double>(0.0)
                                    : absl::InternalError("the parts of the model have changed");
  // Also where this rank has nothing under way: another one of the node may have.
  model_->ParametersChanged();
  if (loss.ok()) loss = model_->ForwardBackward(ToBatch(rows), options_.micro_batch);
  // Copied, not added back: that would round.
  for (size_t i = 0; i < parameters.size(); ++i) {
    std::copy(settled_[i].begin(), settled_[i].end(), parameters[i].data.begin());
  }
  model_->ParametersChanged();
  return loss;
}

double Replica::GradientSquares() const {
  double sum = 0;
  for (const TensorPart<const float>& part : model_->gradients()) {
    // Four sums side by side let the processor overlap the additions.
    std::array<double, 4> sums = {};
    const float* values = part.data.data();
    const size_t size = part.data.size();
    size_t i = 0;
    for (; i + 4 <= size; i += 4) {
      for (size_t j = 0; j < 4; ++j) sums[j] += static_cast<double>(values[i + j]) * values[i + j];
    }
    for (; i < size; ++i) sums[0] += static_cast<double>(values[i]) * values[i];
    sum += (sums[0] + sums[1]) + (sums[2] + sums[3]);
  }
  return sum;
}

int Replica::NonFiniteTensor() const {
  for (const TensorPart<const float>& part : model_->gradients()) {
    for (float value : part.data) {
      if (!std::isfinite(value)) return static_cast<int>(part.tensor);
    }
  }
  return -1;
}

absl::StatusOr<std::vector<std::string>> Replica::Encode(uint64_t round, float lr, double scale) {
  if (scale != 1.0) model_->ScaleGradients(static_cast<float>(scale));
  return method_->Encode(round, lr, model_->gradients());
}

absl::Status Replica::Apply(const UpdateRates& rates, const std::vector<std::string>& pieces) {
  std::vector<const std::string*> views;
  for (const std::string& piece : pieces) views.push_back(&piece);
  ISTHMUS_RETURN_IF_ERROR(method_->Apply(rates, views, model_->parameters()));
  model_->ParametersChanged();
  return absl::OkStatus();
}

absl::StatusOr<double> Replica::HeldOutLoss(const RankData& data) {
  absl::StatusOr<double> loss = 0.0;
  ISTHMUS_RETURN_IF_ERROR(OnShared([&] { return (loss = LossOfHeldOut(data)).status(); }));
  return loss;
}

absl::StatusOr<double> Replica::LossOfHeldOut(const RankData& data) {
  std::array<double, 2> sums = {};  // loss times sequences, sequences
  for (uint64_t i = 0; i < data.held_out().Batches(); ++i) {
    ISTHMUS_ASSIGN_OR_RETURN(TokenRows rows, data.held_out().Rows(i));
    const double weight = static_cast<double>(rows.sequences);
    // A rank whose sequences ran out still takes its part in the gathers.
    if (rows.sequences == 0) {
      ISTHMUS_ASSIGN_OR_RETURN(rows, data.held_out().Rows(0));
    }
    if (rows.sequences == 0) {
      ISTHMUS_ASSIGN_OR_RETURN(rows, data.Step(1));
    }
    ISTHMUS_ASSIGN_OR_RETURN(const at::Tensor loss, model_->Forward(ToBatch(rows)));
    if (weight > 0) sums[0] += weight * loss.item<double>();
    sums[1] += weight;
  }
  ISTHMUS_RETURN_IF_ERROR(options_.group->AllReduceSum(absl::MakeSpan(sums)));
  return sums[0] / sums[1];
}

absl::StatusOr<std::string> Replica::Sample(const std::string& prompt, int bytes) {
  absl::StatusOr<std::string> text = std::string();
  ISTHMUS_RETURN_IF_ERROR(OnShared([&] { return (text = SampleText(prompt, bytes)).status(); }));
  return text;
}

absl::StatusOr<std::string> Replica::SampleText(const std::string& prompt, int bytes) {
  std::string text = prompt;
  std::mt19937_64 random(options_.spec.seed());
  const size_t context = options_.spec.model().context();
  for (int i = 0; i < bytes; ++i) {
    const std::string seen = text.substr(text.size() > context ? text.size() - context : 0);
    TokenRows rows;
    rows.sequences = 1;
    rows.length = static_cast<int64_t>(seen.size());
    for (char byte : seen) rows.tokens.push_back(static_cast<unsigned char>(byte));
    rows.tokens.push_back(0);
    Batch batch = ToBatch(rows);
    batch.targets = at::Tensor();
    ISTHMUS_ASSIGN_OR_RETURN(const at::Tensor logits, model_->Forward(batch));
    ISTHMUS_RETURN_IF_ERROR(CatchTorch("sampling", [&] {
      const at::Tensor chances = at::softmax(
          logits.select(0, 0).select(0, rows.length - 1).to(at::kDouble) / kSampleTemperature, 0);
      double left = static_cast<double>(random() >> 11) * 0x1p-53;
      int64_t token = 0;
      for (; token < 255; ++token) {
        left -= chances.const_data_ptr<double>()[token];
        if (left < 0) break;
      }
      text.push_back(static_cast<char>(token));
      return absl::OkStatus();
    }));
  }
  return text.substr(prompt.size());
}

}  // namespace isthmus
