#include "server/runs.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "server/spec_difference.h"
#include "server/spec_update.h"
#include "spec/run_spec.h"
#include "transport/errors.h"

namespace isthmus {
namespace {

namespace fs = std::filesystem;

constexpr char kRunsFolder[] = "runs";
constexpr char kSpoolFolder[] = "spool";
// What every database of ours has.
constexpr char kStoreMark[] = "CURRENT";
// Of a folder on its way out; no run has such a name.
constexpr char kGoing[] = ".going";

absl::Status InFolder(const absl::Status& status, const std::string& dir) {
  if (status.ok() || dir.empty()) return status;
  return absl::Status(status.code(), absl::StrCat(dir, ": ", status.message()));
}

// First out of the way as a whole: half a database would stop the next start.
void RemoveFolder(const std::string& dir) {
  if (dir.empty()) return;
  const fs::path going = fs::path(dir).parent_path() / kGoing;
  std::error_code error;
  fs::remove_all(going, error);
  fs::rename(dir, going, error);
  fs::remove_all(going, error);
}

// The folder of a run that comes into being; it goes where none does. Outlives the run's store.
class NewFolder {
 public:
  explicit NewFolder(std::string dir) : dir_(std::move(dir)) {}
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;
  ~NewFolder() {
    if (!is_kept_) RemoveFolder(dir_);
  }
  void Keep() { is_kept_ = true; }

 private:
  const std::string dir_;
  bool is_kept_ = false;
};

// Whether an error is that of one folder, and says nothing of the others.
bool IsOfOneFolder(const absl::Status& status) {
  return ReasonOf(status) != kReasonFolderInUse && !absl::IsResourceExhausted(status) &&
         !absl::IsAlreadyExists(status);
}

absl::Status MakeFolder(const std::string& dir) {
  std::error_code error;
  if (!dir.empty()) fs::create_directories(dir, error);
  if (!error) return absl::OkStatus();
  return WithReason(absl::FailedPreconditionError(
                        absl::StrCat("cannot make the folder ", dir, ": ", error.message())),
                    "STATE_FOLDER");
}

v1::CreateRunResponse CreatedAs(const v1::RunSpec& spec) {
  v1::CreateRunResponse response;
  *response.mutable_spec() = spec;
  return response;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Runs>> Runs::Start(RunsOptions options) {
  std::unique_ptr<Runs> runs(new Runs(std::move(options)));
  ISTHMUS_RETURN_IF_ERROR(runs->ResumeAll());
  return runs;
}

Runs::~Runs() { Stop(); }

absl::Status Runs::ResumeAll() {
  const std::string& dir = options_.state_dir;
  if (options_.spec.has_value()) {
    ISTHMUS_ASSIGN_OR_RETURN(std::shared_ptr<Store> store, options_.open_store(dir));
    ISTHMUS_RETURN_IF_ERROR(StartRun(*options_.spec, std::move(store), dir));
  } else if (!dir.empty() && fs::exists(fs::path(dir) / kStoreMark)) {
    // No run has such a name, and which one it is cannot be said where it cannot be read.
    std::error_code error;
    ISTHMUS_RETURN_IF_ERROR(ResumeOrSetAside(fs::absolute(dir, error).string(), dir));
  }
  if (dir.empty()) return absl::OkStatus();
  std::error_code none;  // there is no such folder: no run was created
  std::vector<std::string> folders;
  for (const auto& entry : fs::directory_iterator(fs::path(dir) / kRunsFolder, none)) {
    if (entry.path().filename() == kGoing) continue;
    if (fs::exists(entry.path() / kStoreMark)) folders.push_back(entry.path().string());
  }
  std::sort(folders.begin(), folders.end());
  for (const std::string& folder : folders) {
    ISTHMUS_RETURN_IF_ERROR(ResumeOrSetAside(fs::path(folder).filename().string(), folder));
  }
  if (!runs_.empty() || not_served_.empty()) return absl::OkStatus();
  return not_served_.begin()->second;
}

absl::Status Runs::ResumeOrSetAside(const std::string& run, const std::string& dir) {
  const absl::Status resumed = ResumeFolder(dir);
  if (resumed.ok() || !IsOfOneFolder(resumed)) return resumed;
  LogError("a run cannot be gone on with and is not served",
           {{"run", run}, {"why", std::string(resumed.message())}});
  not_served_[run] = resumed;
  return absl::OkStatus();
}

absl::Status Runs::ResumeFolder(const std::string& dir) {
  ISTHMUS_ASSIGN_OR_RETURN(std::shared_ptr<Store> store, options_.open_store(dir));
  absl::optional<v1::StoredRun> run = store->State().run;
  if (!run.has_value()) {
    // Its creation was never answered.
    LogWarning("a folder holds no run, and is left as it is", {{"dir", dir}});
    return absl::OkStatus();
  }
  // Fields that came with a later version have their default.
  v1::RunSpec spec = run->spec();
  if (const absl::Status complete = CompleteRunSpec(&spec); !complete.ok()) {
    return InFolder(complete, dir);
  }
  return InFolder(StartRun(spec, std::move(store), dir), dir);
}

absl::Status Runs::StartRun(const v1::RunSpec& spec, std::shared_ptr<Store> store,
                            const std::string& dir) {
  ISTHMUS_RETURN_IF_ERROR(CheckRoom(spec.run()));
  CoordinatorOptions options;
  options.spec = spec;
  options.store = std::move(store);
  options.scratch_dir = dir;
  options.contributions = options_.contributions;
  if (!dir.empty()) options.spool_dir = (fs::path(dir) / kSpoolFolder).string();
  ISTHMUS_ASSIGN_OR_RETURN(std::unique_ptr<Coordinator> started,
                           Coordinator::Start(std::move(options)));
  for (const std::string& warning : SpecWarnings(spec)) {
    LogWarning(warning, {{"run", spec.run()}});
  }
  std::lock_guard<std::mutex> lock(mutex_);
  if (stopping_) {
    return WithReason(absl::UnavailableError("the coordinator is shutting down"),
                      kReasonShuttingDown);
  }
  runs_[spec.run()] = std::move(started);
  return absl::OkStatus();
}

// An empty store. What a creation that was never answered has left there goes.
absl::StatusOr<std::unique_ptr<Store>> Runs::OpenNew(const std::string& dir) const {
  std::error_code unknown;
  const bool was_there = fs::exists(dir, unknown);
  ISTHMUS_RETURN_IF_ERROR(MakeFolder(dir));
  absl::StatusOr<std::unique_ptr<Store>> opened = options_.open_store(dir);
  if (!opened.ok() && !was_there) RemoveFolder(dir);
  ISTHMUS_ASSIGN_OR_RETURN(std::unique_ptr<Store> store, std::move(opened));
  if (store->State().run.has_value()) {
    return WithReason(absl::AlreadyExistsError(absl::StrCat(
                          dir,
                          " holds a run that came there since this coordinator was started; "
                          "start it again, or give the new run another name")),
                      "RUN_EXISTS");
  }
  if (store->Pieces(0).empty()) return store;
  store = nullptr;
  RemoveFolder(dir);
  ISTHMUS_RETURN_IF_ERROR(MakeFolder(dir));
  return options_.open_store(dir);
}

std::string Runs::FolderOf(const std::string& run) const {
  if (options_.state_dir.empty()) return "";
  return (fs::path(options_.state_dir) / kRunsFolder / run).string();
}

absl::Status Runs::NotServedStatus(const std::string& run) const {
  return WithReason(
      absl::UnavailableError(absl::StrCat(
          "run '", run, "' is not served: ", not_served_.at(run).message(),
          ". Mend that folder or take it away, and start the coordinator again; its other runs go "
          "on meanwhile")),
      "RUN_NOT_SERVED");
}

absl::Status Runs::CheckRoom(const std::string& run) const {
  std::lock_guard<std::mutex> lock(mutex_);
  if (runs_.count(run) != 0) {
    return WithReason(absl::AlreadyExistsError(absl::StrCat("there is a run '", run, "' already")),
                      "RUN_EXISTS");
  }
  if (not_served_.count(run) != 0) {
    return WithReason(absl::AlreadyExistsError(absl::StrCat(NotServedStatus(run).message(),
                                                            ". Or give the new run another name")),
                      "RUN_EXISTS");
  }
  if (runs_.size() < kRunsMax) return absl::OkStatus();
  return WithReason(absl::ResourceExhaustedError(
                        absl::StrCat("this coordinator has ", runs_.size(), " runs, the limit is ",
                                     kRunsMax, "; start another coordinator for more")),
                    "TOO_MANY_RUNS");
}

absl::StatusOr<v1::CreateRunResponse> Runs::CreateRun(const v1::CreateRunRequest& request) {
  ISTHMUS_ASSIGN_OR_RETURN(v1::RunSpec spec, ParseRunSpec(request.spec()));
  std::lock_guard<std::mutex> create_lock(create_mutex_);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto same = runs_.find(spec.run());
    if (same != runs_.end()) {
      KeepLayouts(same->second->spec(), &spec);
      const std::string difference = SpecDifference(same->second->spec(), spec);
      if (difference.empty()) return CreatedAs(spec);
      return WithReason(
          absl::AlreadyExistsError(absl::StrCat(
              "there is a run '", spec.run(), "' with another spec: ", difference,
              ". Give the new run another name, or change that one: isthmusctl runs update")),
          "RUN_EXISTS");
    }
  }
  ISTHMUS_RETURN_IF_ERROR(CheckRoom(spec.run()));
  const std::string dir = FolderOf(spec.run());
  ISTHMUS_ASSIGN_OR_RETURN(std::unique_ptr<Store> opened, OpenNew(dir));
  NewFolder folder(dir);
  std::shared_ptr<Store> store = std::move(opened);
  // Persist: Coordinator::Start writes what the run is.
  ISTHMUS_RETURN_IF_ERROR(StartRun(spec, std::move(store), dir));
  folder.Keep();
  LogInfo("an operator creates a run", {{"run", spec.run()}, {"state_dir", dir}});
  return CreatedAs(spec);
}

// The answer to one that was carried out before; absent: there is no run of that name.
absl::StatusOr<absl::optional<v1::ForkRunResponse>> Runs::ForkedBefore(
    const v1::StoredFork& fork, const v1::RunSpec& spec) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto same = runs_.find(spec.run());
  if (same == runs_.end()) return absl::optional<v1::ForkRunResponse>();
  const absl::optional<v1::StoredFork>& known = same->second->fork();
  const std::string difference = SpecDifference(same->second->spec(), spec);
  if (known.has_value() && known->run() == fork.run() && known->round() == fork.round() &&
      difference.empty()) {
    v1::ForkRunResponse response;
    *response.mutable_spec() = spec;
    response.set_round(fork.round());
    response.set_state_sha256(same->second->Look().start_state_sha256);
    return absl::make_optional(response);
  }
  return WithReason(
      absl::AlreadyExistsError(absl::StrCat("there is a run '", spec.run(),
                                            "' already, which is no such fork; give the "
                                            "new run another name")),
      "RUN_EXISTS");
}

absl::StatusOr<v1::ForkRunResponse> Runs::ForkRun(const v1::ForkRunRequest& request) {
  ISTHMUS_ASSIGN_OR_RETURN(const Coordinator* const origin, Find(request.run()));
  ISTHMUS_ASSIGN_OR_RETURN(
      const ForkSource source,
      origin->SourceOfFork(request.has_round() ? absl::make_optional(request.round())
                                               : absl::nullopt));
  v1::RunSpec last = source.spec;
  last.clear_start_state_sha256();  // of the other run
  ISTHMUS_ASSIGN_OR_RETURN(const v1::RunSpec spec,
                           UpdatedSpec(last, request.name(), request.spec(),
                                       {request.set().begin(), request.set().end()}));
  ISTHMUS_RETURN_IF_ERROR(CheckKeepsModel(SpecChanges(last, spec)));
  v1::StoredFork fork;
  fork.set_run(source.spec.run());
  fork.set_round(source.snapshot.facts().round());
  std::lock_guard<std::mutex> create_lock(create_mutex_);
  ISTHMUS_ASSIGN_OR_RETURN(const auto before, ForkedBefore(fork, spec));
  if (before.has_value()) return *before;
  ISTHMUS_RETURN_IF_ERROR(CheckRoom(spec.run()));
  const std::string dir = FolderOf(spec.run());
  ISTHMUS_ASSIGN_OR_RETURN(std::unique_ptr<Store> opened, OpenNew(dir));
  NewFolder folder(dir);
  std::shared_ptr<Store> store = std::move(opened);
  ISTHMUS_ASSIGN_OR_RETURN(const ForkStart start, CopyForFork(source, spec, store.get()));
  // Persist: from here on the run exists.
  ISTHMUS_RETURN_IF_ERROR(store->Write(start.batch));
  ISTHMUS_RETURN_IF_ERROR(StartRun(spec, std::move(store), dir));
  folder.Keep();
  LogInfo("an operator forks a run", {{"run", spec.run()},
                                      {"from", fork.run()},
                                      {"round", absl::StrCat(fork.round())},
                                      {"without", start.without}});
  v1::ForkRunResponse response;
  *response.mutable_spec() = spec;
  response.set_round(fork.round());
  response.set_state_sha256(start.batch.run->start_state_sha256());
  response.set_without(start.without);
  return response;
}

absl::StatusOr<Coordinator*> Runs::Find(const std::string& run) const {
  std::lock_guard<std::mutex> lock(mutex_);
  if (run.empty() && runs_.size() == 1 && not_served_.empty()) return runs_.begin()->second.get();
  if (const auto found = runs_.find(run); found != runs_.end()) return found->second.get();
  if (not_served_.count(run) != 0) return NotServedStatus(run);
  if (runs_.empty()) {
    return WithReason(absl::NotFoundError("this coordinator has no run yet; make one: isthmusctl "
                                          "runs create SPEC_FILE"),
                      "UNKNOWN_RUN");
  }
  std::vector<std::string> names;
  for (const auto& [name, coordinator] : runs_) names.push_back(absl::StrCat("'", name, "'"));
  for (const auto& [name, why] : not_served_) names.push_back(absl::StrCat("'", name, "'"));
  const bool one = names.size() == 1;
  return WithReason(
      absl::NotFoundError(absl::StrCat(
          run.empty() ? "no run was named" : absl::StrCat("there is no run '", run, "' here"),
          "; this coordinator has run", one ? " " : "s ", absl::StrJoin(names, ", "))),
      "UNKNOWN_RUN");
}

std::vector<Coordinator*> Runs::All() const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<Coordinator*> all;
  for (const auto& [name, coordinator] : runs_) all.push_back(coordinator.get());
  return all;
}

std::vector<v1::Run> Runs::NotServed() const {
  std::vector<v1::Run> runs;
  for (const auto& [name, why] : not_served_) {
    runs.emplace_back();
    runs.back().set_run(name);
    runs.back().set_waiting_for(std::string(NotServedStatus(name).message()));
  }
  return runs;
}

void Runs::Stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  for (Coordinator* coordinator : All()) coordinator->Stop();
}

bool Runs::finished() const {
  const std::vector<Coordinator*> all = All();
  return !all.empty() && std::all_of(all.begin(), all.end(), [](const Coordinator* coordinator) {
    return coordinator->finished();
  });
}

size_t Runs::live_nodes() const {
  size_t nodes = 0;
  for (const Coordinator* coordinator : All()) nodes += coordinator->live_nodes();
  return nodes;
}

bool Runs::store_full() const {
  const std::vector<Coordinator*> all = All();
  return std::any_of(all.begin(), all.end(),
                     [](const Coordinator* coordinator) { return coordinator->store_full(); });
}

absl::StatusOr<v1::JoinRunResponse> Runs::JoinRun(const v1::JoinRunRequest& request) {
  ISTHMUS_ASSIGN_OR_RETURN(Coordinator* const run, Find(request.run()));
  return run->JoinRun(request);
}

absl::StatusOr<std::unique_ptr<SubmissionSink>> Runs::BeginSubmit(const v1::SubmitHeader& header) {
  ISTHMUS_ASSIGN_OR_RETURN(Coordinator* const run, Find(header.run()));
  return run->BeginSubmit(header);
}

absl::StatusOr<std::shared_ptr<WatchQueue>> Runs::Watch(const v1::WatchUpdatesRequest& request) {
  ISTHMUS_ASSIGN_OR_RETURN(Coordinator* const run, Find(request.run()));
  return run->Watch(request);
}

// A watch that named no run may be of one that is not the only one any more.
void Runs::WatchEnded(const v1::WatchUpdatesRequest& request,
                      const std::shared_ptr<WatchQueue>& queue) {
  for (Coordinator* coordinator : All()) coordinator->WatchEnded(request, queue);
}

absl::StatusOr<v1::HeartbeatResponse> Runs::Heartbeat(const v1::HeartbeatRequest& request) {
  ISTHMUS_ASSIGN_OR_RETURN(Coordinator* const run, Find(request.run()));
  return run->Heartbeat(request);
}

absl::StatusOr<v1::LeaveRunResponse> Runs::LeaveRun(const v1::LeaveRunRequest& request) {
  ISTHMUS_ASSIGN_OR_RETURN(Coordinator* const run, Find(request.run()));
  return run->LeaveRun(request);
}

absl::StatusOr<std::unique_ptr<SnapshotSink>> Runs::BeginUpload(
    const v1::UploadSnapshotHeader& header) {
  ISTHMUS_ASSIGN_OR_RETURN(Coordinator* const run, Find(header.run()));
  return run->BeginUpload(header);
}

absl::StatusOr<std::unique_ptr<SnapshotSource>> Runs::BeginFetch(
    const v1::FetchSnapshotRequest& request) {
  ISTHMUS_ASSIGN_OR_RETURN(Coordinator* const run, Find(request.run()));
  return run->BeginFetch(request);
}

}  // namespace isthmus
