// The runs of one coordinator process, each with a Coordinator and a store of its own, and the way
// of every call to the run that it names.
//
//   STATE_DIR             the run of --run_spec, or of an earlier release
//   STATE_DIR/runs/NAME   runs that operators created; all of them are gone on with at a start
//
// Thread-safe.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "server/contribution_budget.h"
#include "server/run_finder.h"
#include "server/store.h"
#include "transport/round_host.h"

namespace isthmus {

struct RunsOptions {
  absl::optional<v1::RunSpec> spec;  // of the run that is there in any case; complete
  std::string state_dir;             // empty: runs are kept in memory only
  StoreLimits limits;                // of each store
  // Of each run's contributions to open rounds; there is a spool file where there is a state_dir.
  BudgetLimits contributions;
  // Opens the store in a folder (empty: in memory).
  std::function<absl::StatusOr<std::unique_ptr<Store>>(const std::string& dir)> open_store;
};

class Runs final : public RunFinder, public RoundHost {
 public:
  // Goes on with every run that the folders hold. One whose folder is damaged, or of another
  // version, is not served, and the others are. Errors as of Coordinator::Start and of opening a
  // store, with the run's folder: of the run of `spec`, of a folder that another process uses,
  // where there is no room, and where no run is left.
  static absl::StatusOr<std::unique_ptr<Runs>> Start(RunsOptions options);
  ~Runs() override;

  absl::StatusOr<Coordinator*> Find(const std::string& run) const override;
  std::vector<Coordinator*> All() const override;
  std::vector<v1::Run> NotServed() const override;
  //   INVALID_ARGUMENT     the spec does not parse or does not hold
  //   ALREADY_EXISTS       a run of that name has another spec; names the first field that differs
  //   RESOURCE_EXHAUSTED   as many runs as there may be, or no room on the disk
  absl::StatusOr<v1::CreateRunResponse> CreateRun(const v1::CreateRunRequest& request) override;
  //   as of CreateRun; NOT_FOUND or FAILED_PRECONDITION: no such snapshot; names those there are
  absl::StatusOr<v1::ForkRunResponse> ForkRun(const v1::ForkRunRequest& request) override;

  // Ends all of them. Idempotent.
  void Stop();
  // There is a run, and all of them are finished.
  bool finished() const;
  size_t live_nodes() const;
  // The disk of one of them has no room for what it must store.
  bool store_full() const;

  absl::StatusOr<v1::JoinRunResponse> JoinRun(const v1::JoinRunRequest& request) override;
  absl::StatusOr<std::unique_ptr<SubmissionSink>> BeginSubmit(
      const v1::SubmitHeader& header) override;
  absl::StatusOr<std::shared_ptr<WatchQueue>> Watch(
      const v1::WatchUpdatesRequest& request) override;
  void WatchEnded(const v1::WatchUpdatesRequest& request,
                  const std::shared_ptr<WatchQueue>& queue) override;
  absl::StatusOr<v1::HeartbeatResponse> Heartbeat(const v1::HeartbeatRequest& request) override;
  absl::StatusOr<v1::LeaveRunResponse> LeaveRun(const v1::LeaveRunRequest& request) override;
  absl::StatusOr<std::unique_ptr<SnapshotSink>> BeginUpload(
      const v1::UploadSnapshotHeader& header) override;
  absl::StatusOr<std::unique_ptr<SnapshotSource>> BeginFetch(
      const v1::FetchSnapshotRequest& request) override;

 private:
  explicit Runs(RunsOptions options) : options_(std::move(options)) {}
  absl::Status ResumeAll();
  absl::Status ResumeFolder(const std::string& dir);
  absl::Status ResumeOrSetAside(const std::string& run, const std::string& dir);
  absl::Status StartRun(const v1::RunSpec& spec, std::shared_ptr<Store> store,
                        const std::string& dir);
  absl::StatusOr<absl::optional<v1::ForkRunResponse>> ForkedBefore(const v1::StoredFork& fork,
                                                                   const v1::RunSpec& spec) const;
  absl::StatusOr<std::unique_ptr<Store>> OpenNew(const std::string& dir) const;
  std::string FolderOf(const std::string& run) const;
  absl::Status NotServedStatus(const std::string& run) const;
  absl::Status CheckRoom(const std::string& run) const;

  const RunsOptions options_;
  std::mutex create_mutex_;  // one run at a time comes into being; taken first
  mutable std::mutex mutex_;
  bool stopping_ = false;
  std::map<std::string, absl::Status> not_served_;  // filled before there are other threads
  std::map<std::string, std::unique_ptr<Coordinator>> runs_;
};

}  // namespace isthmus
