// JoinRun: who may take part, and in what.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/sha256.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "server/coordinator.h"
#include "server/field_size.h"
#include "server/version.h"
#include "spec/manifest.h"
#include "spec/rows.h"
#include "transport/errors.h"

namespace isthmus {
namespace {

// What can be said about a request without knowing the run's state.
absl::Status CheckJoinRequest(const v1::JoinRunRequest& request) {
  if (request.role() != v1::ROLE_NODE) {
    return WithReason(absl::InvalidArgumentError(absl::StrCat(
                          "role is ", v1::Role_Name(request.role()),
                          "; a coordinator admits ROLE_NODE, ranks join their node's agent")),
                      "WRONG_ROLE");
  }
  ISTHMUS_RETURN_IF_ERROR(
      CheckFieldSize("secret", request.secret().size(), kSecretBytesMin, kSecretBytesMax));
  ISTHMUS_RETURN_IF_ERROR(
      CheckFieldSize("fingerprint", request.fingerprint().size(), kSha256Bytes, kSha256Bytes));
  ISTHMUS_RETURN_IF_ERROR(
      CheckFieldSize("state_sha256", request.state_sha256().size(), kSha256Bytes, kSha256Bytes));
  ISTHMUS_RETURN_IF_ERROR(CheckFieldSize("heldout_sha256", request.heldout_sha256().size(),
                                         request.heldout_sha256().empty() ? 0 : kSha256Bytes,
                                         kSha256Bytes));
  const size_t update_sha256_bytes = request.last_round() == 0 ? 0 : kSha256Bytes;
  ISTHMUS_RETURN_IF_ERROR(CheckFieldSize(
      absl::StrCat("last_update_sha256 with last_round ", request.last_round()),
      request.last_update_sha256().size(), update_sha256_bytes, update_sha256_bytes));
  ISTHMUS_RETURN_IF_ERROR(
      CheckFieldSize("client_version", request.client_version().size(), 0, kReasonBytesMax));
  if (request.capabilities_size() > static_cast<int>(kCapabilitiesMax)) {
    return WithReason(
        absl::InvalidArgumentError(absl::StrCat("there are ", request.capabilities_size(),
                                                " capabilities; the limit is ", kCapabilitiesMax)),
        "WRONG_SIZE");
  }
  return absl::OkStatus();
}

absl::Status StartStateDiffers(const v1::JoinRunRequest& request, absl::string_view whose,
                               const std::string& sha256) {
  return WithReason(absl::FailedPreconditionError(absl::StrCat(
                        "node '", request.node(), "' holds start state ",
                        HexPrefix(request.state_sha256()), ", ", whose, " ", HexPrefix(sha256),
                        "; build it from the run's seed, or from the same file on all nodes")),
                    "START_STATE_DIFFERS");
}

absl::Status StartNotThere(const v1::JoinRunRequest& request, const std::string& start) {
  return WithRetryAfterMs(
      WithReason(absl::UnavailableError(absl::StrCat(
                     "node '", request.node(), "' waits for the state of node '", start,
                     "', which the run starts from (snapshot.start_node); it has not come yet")),
                 "NO_START_STATE"),
      kRetryAfterMs);
}

}  // namespace

absl::StatusOr<v1::JoinRunResponse> Coordinator::JoinRun(const v1::JoinRunRequest& request) {
  const DeliverAfter deliver(this);
  absl::StatusOr<v1::JoinRunResponse> response = Admit(request);
  if (!response.ok()) {
    LogWarning("join refused", {{"node", request.node()},
                                {"why", std::string(response.status().message())},
                                {"run", spec_.run()}});
    std::lock_guard<std::mutex> lock(mutex_);
    NoteRefusalLocked(request.node(), 0, v1::NODE_OUTCOME_REFUSED, response.status().message());
  } else if (response->incarnation() != 0) {
    LogInfo("node joined", {{"node", request.node()},
                            {"incarnation", absl::StrCat(response->incarnation())},
                            {"holds_round", absl::StrCat(request.last_round())},
                            {"version", request.client_version()},
                            {"run", spec_.run()}});
  }
  return response;
}

absl::StatusOr<v1::JoinRunResponse> Coordinator::Admit(const v1::JoinRunRequest& request) {
  ISTHMUS_RETURN_IF_ERROR(CheckRun(request.run()));
  v1::JoinRunResponse response;
  response.set_node(request.node());
  response.set_server_version(kServerVersion);
  if (request.has_manifest()) {
    ISTHMUS_RETURN_IF_ERROR(CheckNode(request.node()));
    ISTHMUS_RETURN_IF_ERROR(CheckJoinRequest(request));
  }
  std::lock_guard<std::mutex> admission_lock(admission_mutex_);
  std::unique_lock<std::mutex> lock(mutex_);
  ISTHMUS_RETURN_IF_ERROR(CheckServingLocked());
  response.set_committed_round(machine_.committed_round());
  const uint64_t round = request.has_manifest() ? request.last_round() + 1 : PresentRoundLocked();
  *response.mutable_spec() = revisions_.SpecOf(round);
  response.set_spec_revision(revisions_.RevisionOf(round));
  if (!request.has_manifest()) return response;  // only the spec was asked for

  ISTHMUS_ASSIGN_OR_RETURN(const Admission admission, PlanLocked(request));
  // Persist: the number must not be given out again, whatever happens. Rounds go on meanwhile,
  // except where this changes what the run is (its first joins): nothing may build on it before.
  const bool changes_run = admission.batch.run.has_value();
  if (!changes_run) lock.unlock();
  const absl::Status stored = WriteStore(admission.batch);
  if (!changes_run) lock.lock();
  if (!stored.ok()) {
    if (lock.owns_lock()) lock.unlock();
    return CannotStore(stored);
  }
  ISTHMUS_RETURN_IF_ERROR(CheckServingLocked());
  AdmitLocked(request, admission);
  response.set_incarnation(admission.batch.node->incarnation());
  response.set_attempt(admission.batch.node->attempt());
  response.set_committed_round(machine_.committed_round());
  if (UploadsStartLocked(request)) response.set_snapshot(v1::SNAPSHOT_DUTY_UPLOAD);
  return response;
}

absl::StatusOr<Coordinator::Admission> Coordinator::PlanLocked(const v1::JoinRunRequest& request) {
  ISTHMUS_RETURN_IF_ERROR(CheckNotEvictedLocked(request.node()));
  ISTHMUS_RETURN_IF_ERROR(CheckSecretLocked(request));
  ISTHMUS_RETURN_IF_ERROR(
      CheckHistoryLocked(request.node(), request.last_round(), request.last_update_sha256()));
  ISTHMUS_RETURN_IF_ERROR(CheckHeldOutLocked(request));
  Admission admission;
  ISTHMUS_ASSIGN_OR_RETURN(admission.model, CheckModelLocked(request));
  ISTHMUS_RETURN_IF_ERROR(CheckHealedLocked(request));
  ISTHMUS_RETURN_IF_ERROR(CheckCatchUpLocked(request.node(), request.last_round()));
  admission.heldout_sha256 =
      request.heldout_sha256().empty() ? heldout_sha256_ : request.heldout_sha256();
  if (admission.model != model_ || admission.heldout_sha256 != heldout_sha256_) {
    admission.batch.run = StoredRunOf(admission.model, admission.heldout_sha256);
  }
  if (state_judge_.Find(request.node()) != nullptr) {
    StateJudge then = state_judge_;
    then.Healed(request.node());
    admission.batch.run = StoredRunOf(admission.model, admission.heldout_sha256);
    *admission.batch.run->mutable_state_check() = then.Stored();
  }
  // Numbers rise over the run, also beyond those that an earlier coordinator gave out.
  last_incarnation_ = std::max(last_incarnation_, request.attempt()) + 1;
  v1::StoredNode& node = admission.batch.node.emplace(StoredNodeOf(request.node()));
  node.set_left(false);
  node.set_incarnation(last_incarnation_);
  node.set_attempt(request.attempt() != 0 ? request.attempt() : last_incarnation_);
  node.set_secret_sha256(Sha256Of(request.secret()));
  // A corrected model has another start state, and trainers that were started again cut theirs in
  // another way, perhaps: of neither anything is there yet.
  if (UploadsStartLocked(request) &&
      (snapshot_plan_.plan() == nullptr || request.attempt() == 0 || admission.model != model_)) {
    admission.batch.plan.emplace();
    admission.batch.plan->set_node(request.node());
    admission.batch.plan->add_members(request.node());
  }
  return admission;
}

void Coordinator::AdmitLocked(const v1::JoinRunRequest& request, const Admission& admission) {
  if (admission.model != model_) {
    model_ = admission.model;
    // What came in for the model before is for nothing.
    for (auto& [round, aggregator] : aggregators_) aggregator = MakeAggregatorLocked();
    LogInfo("model fixed", {{"node", request.node()},
                            {"fingerprint", HexPrefix(model_->fingerprint)},
                            {"start_state", HexPrefix(model_->start_state_sha256)},
                            {"tensors", absl::StrCat(request.manifest().tensors_size())},
                            {"elements", absl::StrCat(model_->grid->elements())},
                            {"contribution_bytes", absl::StrCat(model_->sizes.total())},
                            {"run", spec_.run()}});
  }
  heldout_sha256_ = admission.heldout_sha256;
  if (admission.batch.plan.has_value()) BeginPlanLocked(*admission.batch.plan);
  differing_.erase(request.node());
  if (state_judge_.Find(request.node()) != nullptr) {
    LogInfo("a node is healed: it joins with a state that is right",
            {{"node", request.node()},
             {"round", absl::StrCat(request.last_round())},
             {"state", HexPrefix(request.state_sha256())},
             {"run", spec_.run()}});
    state_judge_.Healed(request.node());
    StepLocked(NodeHealed{request.node()});
  }
  NodeState& node = nodes_[request.node()];
  CloseWatchLocked(&node, WithReason(absl::AbortedError("the node joined again; watch again"),
                                     "WATCH_REPLACED"));
  node.secret_sha256 = admission.batch.node->secret_sha256();
  node.incarnation = admission.batch.node->incarnation();
  node.attempt = admission.batch.node->attempt();
  NoteChangeLocked(request.node(), /*left=*/false);
  node.trail.heartbeat_ms = node.trail.since_ms;
  node.trail.client_version = request.client_version();
  StepLocked(NodeJoined{request.node(), node.incarnation, request.last_round()});
}

absl::Status Coordinator::CheckRun(const std::string& run) const {
  if (run.empty() || run == spec_.run()) return absl::OkStatus();
  return WithReason(
      absl::NotFoundError(absl::StrCat("there is no run '", run,
                                       "' here; this coordinator has run '", spec_.run(), "'")),
      "UNKNOWN_RUN");
}

absl::Status Coordinator::CheckNode(const std::string& node) const {
  if (nodes_.count(node) != 0) return absl::OkStatus();
  std::vector<std::string> names;
  for (const auto& [name, state] : nodes_) names.push_back(name);
  return WithReason(absl::NotFoundError(absl::StrCat(
                        "run '", spec_.run(), "' has no node '", node, "'; its spec names ",
                        absl::StrJoin(names, ", "), ". Add the node there, or use one of these")),
                    "UNKNOWN_NODE");
}

absl::Status Coordinator::CheckSecretLocked(const v1::JoinRunRequest& request) const {
  const NodeState& node = nodes_.at(request.node());
  if (!machine_.IsLive(request.node()) || node.secret_sha256 == Sha256Of(request.secret())) {
    return absl::OkStatus();
  }
  const int64_t left_ms = machine_.LeaseLeftMs(request.node(), NowMs());
  return WithRetryAfterMs(
      WithReason(absl::AlreadyExistsError(absl::StrCat(
                     "node '", request.node(), "' lives in another process (incarnation ",
                     node.incarnation, "); its lease ends in ", left_ms,
                     " ms unless it is renewed. Stop that process, or use another node name")),
                 kReasonNodeAlive),
      left_ms);
}

// Whatever state the node was built from is not that of the run.
bool Coordinator::StartsByFetching(const std::string& node) const {
  const std::string& start = spec_.snapshot().start_node();
  return fork_.has_value() || (!start.empty() && node != start);
}

absl::Status Coordinator::CheckStartState(const v1::JoinRunRequest& request) const {
  if (StartsByFetching(request.node())) return absl::OkStatus();
  const std::string& pinned = spec_.start_state_sha256();
  if (request.last_round() != 0 || pinned.empty() || request.state_sha256() == pinned) {
    return absl::OkStatus();
  }
  return StartStateDiffers(request, "the run's spec says", pinned);
}

absl::StatusOr<Coordinator::ModelPtr> Coordinator::CheckModelLocked(
    const v1::JoinRunRequest& request) const {
  const std::string& start = spec_.snapshot().start_node();
  const bool starts_by_fetching = StartsByFetching(request.node());
  if (starts_by_fetching && model_ == nullptr) return StartNotThere(request, start);
  const bool fixed =
      model_ != nullptr && (starts_by_fetching || !ModelMayChangeLocked(request.node()));
  // Against the run's own manifest first: that sentence names what both sides have.
  if (fixed) {
    const std::string difference = ManifestDifference(model_->manifest, request.manifest());
    if (!difference.empty()) {
      return WithReason(absl::FailedPreconditionError(absl::StrCat(
                            "node '", request.node(), "' trains another model: ", difference,
                            "; all nodes of a run train the same one")),
                        "MANIFEST_DIFFERS");
    }
  }
  if (request.attempt() > kIncarnationMax) {
    return WithReason(absl::InvalidArgumentError(absl::StrCat("attempt is ", request.attempt(),
                                                              "; the limit is ", kIncarnationMax)),
                      "ATTEMPT");
  }
  ISTHMUS_RETURN_IF_ERROR(ValidateManifest(request.manifest()));
  const std::string fingerprint = Fingerprint(request.manifest());
  if (fingerprint != request.fingerprint()) {
    return WithReason(
        absl::FailedPreconditionError(absl::StrCat(
            "node '", request.node(), "' says fingerprint ", HexPrefix(request.fingerprint()),
            ", its manifest has ", HexPrefix(fingerprint), "; use the same version on both sides")),
        "FINGERPRINT_DIFFERS");
  }
  ISTHMUS_RETURN_IF_ERROR(CheckStartState(request));
  if (!fixed) {
    if (model_ != nullptr && model_->fingerprint == fingerprint &&
        model_->start_state_sha256 == request.state_sha256()) {
      return model_;
    }
    ISTHMUS_ASSIGN_OR_RETURN(const ModelPtr made,
                             MakeModel(request.manifest(), fingerprint, request.state_sha256(),
                                       PresentSpecLocked().codec()));
    for (const v1::StoredRevision& coming : revisions_.After(PresentRoundLocked())) {
      ISTHMUS_RETURN_IF_ERROR(MakeModel(*made, coming.spec().codec()).status());
    }
    return made;
  }
  if (request.last_round() == 0 && request.state_sha256() != model_->start_state_sha256) {
    if (starts_by_fetching && snapshots_.empty()) return StartNotThere(request, start);
    if (starts_by_fetching) {
      return WithReason(
          absl::OutOfRangeError(absl::StrCat(
              "the run starts from ",
              fork_.has_value() ? absl::StrCat("a snapshot of run '", fork_->run(), "'")
                                : absl::StrCat("the state of node '", start, "'"),
              ": fetch the snapshot and join with that")),
          kReasonFetchSnapshot);
    }
    return StartStateDiffers(request, "the run's other nodes hold", model_->start_state_sha256);
  }
  return model_;
}

// Losses of two sites are compared all through a run, so they must be of the same tokens.
absl::Status Coordinator::CheckHeldOutLocked(const v1::JoinRunRequest& request) const {
  const std::string& theirs = request.heldout_sha256();
  if (theirs.empty() || heldout_sha256_.empty() || theirs == heldout_sha256_) {
    return absl::OkStatus();
  }
  if (ModelMayChangeLocked(request.node())) return absl::OkStatus();
  return WithReason(
      absl::FailedPreconditionError(absl::StrCat(
          "node '", request.node(), "' holds out tokens ", HexPrefix(theirs),
          ", the run's other nodes ", HexPrefix(heldout_sha256_),
          "; give all trainers the same file as --heldout_data, or the same files as --data")),
      "HELDOUT_DIFFERS");
}

// The node that the run starts from uploads its start state, until that is a snapshot.
bool Coordinator::UploadsStartLocked(const v1::JoinRunRequest& request) const {
  return request.node() == spec_.snapshot().start_node() && request.last_round() == 0 &&
         machine_.committed_round() == 0 && snapshots_.empty();
}

// The first node fixes what is trained. It can be corrected as long as nothing was built on it.
bool Coordinator::ModelMayChangeLocked(const std::string& joining) const {
  if (machine_.committed_round() != 0 || machine_.committing_round() != 0) return false;
  // Others start from it, or are about to.
  if (!snapshots_.empty() || snapshot_plan_.whole()) return false;
  return std::none_of(nodes_.begin(), nodes_.end(), [&](const auto& entry) {
    const std::string& name = entry.first;
    return (name != joining && machine_.IsLive(name)) ||
           std::any_of(aggregators_.begin(), aggregators_.end(), [&](const auto& open) {
             return machine_.StandingIn(name, open.first) == Standing::kComplete;
           });
  });
}

// What is trained, if there is room for contributions to it.
absl::StatusOr<Coordinator::ModelPtr> Coordinator::MakeModel(const v1::Manifest& manifest,
                                                             const std::string& fingerprint,
                                                             const std::string& start_state_sha256,
                                                             const v1::CodecSpec& codec) const {
  ISTHMUS_ASSIGN_OR_RETURN(Grid made, Grid::Make(manifest, codec));
  const auto grid = std::make_shared<const Grid>(std::move(made));
  // So every member has room for its contribution to the round that commits next, and none can wait
  // for another's. A chunk has a value at least (where any travel), which may be a byte: what is
  // too large by that is refused before its sizes are added up.
  const uint64_t bytes_max = pieces_.limits().total() / nodes_.size();
  const bool sends = codec.kind() != v1::CODEC_KIND_NONE && !RowsOfTensors(codec);
  const bool in_format =
      codec.kind() == v1::CODEC_KIND_NUMBERS || SendsRows(codec) || SendsGapCoded(codec);
  const uint64_t chunk_min = in_format ? 1 : sizeof(float);
  const uint64_t bytes_min = sends ? grid->chunks() * chunk_min : 0;
  absl::optional<ContributionSizes> sizes;
  if (bytes_min <= bytes_max) sizes.emplace(grid);
  const uint64_t bytes = sizes.has_value() ? sizes->total() : bytes_min;
  if (!sizes.has_value() || NeedBytes(bytes) > bytes_max) {
    return WithReason(
        absl::ResourceExhaustedError(absl::StrCat(
            "a contribution to this model has ", sizes.has_value() ? "" : "at least ", bytes,
            " bytes and needs ", NeedBytes(bytes), ", ", nodes_.size(),
            " nodes need that each; the limit of the coordinator is ", pieces_.limits().total(),
            " bytes (--contribution_memory_mib and --spool_mib). Raise it, or lower "
            "codec.matrix_density or codec.vector_density (CODEC_KIND_DENSE sends all)")),
        "OPEN_CONTRIBUTION_BYTES");
  }
  return std::make_shared<const Model>(
      Model{manifest, fingerprint, start_state_sha256, codec, grid, *std::move(sizes)});
}

}  // namespace isthmus
