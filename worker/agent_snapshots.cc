// Snapshots pass through the agent, piece by piece: it keeps nothing of them. Contributions go
// first.
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "transport/errors.h"
#include "worker/agent_impl.h"

namespace isthmus {
namespace {

// How often it is looked whether a contribution has gone up.
constexpr std::chrono::milliseconds kYieldPoll(20);

class DownloadRelay final : public SnapshotSource {
 public:
  explicit DownloadRelay(std::unique_ptr<SnapshotDownload> download)
      : download_(std::move(download)) {}

  absl::StatusOr<absl::optional<v1::FetchSnapshotResponse>> Next() override {
    v1::FetchSnapshotResponse message;
    if (download_->Next(&message)) return absl::make_optional(std::move(message));
    ISTHMUS_RETURN_IF_ERROR(download_->Finish());
    return absl::optional<v1::FetchSnapshotResponse>();
  }

 private:
  const std::unique_ptr<SnapshotDownload> download_;
};

}  // namespace

// The host outlives it.
class UploadRelay final : public SnapshotSink {
 public:
  UploadRelay(AgentImpl* agent, std::unique_ptr<SnapshotUpload> upload)
      : agent_(agent), upload_(std::move(upload)) {}

  absl::Status AddPiece(const v1::SnapshotPiece& piece) override {
    agent_->YieldToContribution();
    if (upload_->Send(piece)) return absl::OkStatus();
    const absl::Status status = upload_->Finish().status();
    return status.ok() ? absl::AbortedError("the coordinator ended the upload early") : status;
  }

  absl::StatusOr<v1::UploadSnapshotResponse> End() override { return upload_->Finish(); }

 private:
  AgentImpl* const agent_;
  const std::unique_ptr<SnapshotUpload> upload_;
};

// Under the mutex.
void AgentImpl::TakeStatePart(const v1::HeartbeatRequest& request) {
  const absl::StatusOr<std::string> sha256 =
      state_parts_.Add(request.state_part(), *group_->grid());
  if (!sha256.ok()) {  // a bug of the rank's, which it cannot mend by saying it again
    LogError("a rank's part of the state is of no use",
             {{"rank", absl::StrCat(request.rank())}, {"why", sha256.status().ToString()}});
  } else if (!sha256->empty()) {
    session_->AddCheck(request.state_part().round(), *sha256);
  }
}

void AgentImpl::YieldToContribution() {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(kSnapshotYieldMs);
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stopping_ && session_ != nullptr && session_->busy() &&
         std::chrono::steady_clock::now() < end) {
    changed_.wait_for(lock, kYieldPoll);
  }
}

absl::StatusOr<std::unique_ptr<SnapshotSink>> AgentImpl::BeginUpload(
    const v1::UploadSnapshotHeader& header) {
  v1::UploadSnapshotHeader upward = header;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ISTHMUS_RETURN_IF_ERROR(CheckRank(v1::ROLE_RANK, header.rank(), header.incarnation()));
    upward.set_run(joined_->spec().run());
    upward.set_node(options_.node);
    upward.set_rank(0);
    upward.set_incarnation(joined_->incarnation());
  }
  return std::unique_ptr<SnapshotSink>(
      std::make_unique<UploadRelay>(this, client_->UploadSnapshot(upward)));
}

// Also for ranks that have not joined, since they fetch what they will join with.
absl::StatusOr<std::unique_ptr<SnapshotSource>> AgentImpl::BeginFetch(
    const v1::FetchSnapshotRequest& request) {
  v1::FetchSnapshotRequest upward = request;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (stopping_) return Stopping();
    if (spec_.has_value()) upward.set_run(spec_->spec().run());
  }
  return std::unique_ptr<SnapshotSource>(
      std::make_unique<DownloadRelay>(client_->FetchSnapshot(upward)));
}

}  // namespace isthmus
