// A small model, its contributions, and the processes of a run in one test process: a real
// coordinator on loopback, real agents on unix sockets.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "isthmus/v1/coordinator.pb.h"
#include "isthmus/v1/run_spec.pb.h"
#include "server/coordinator.h"
#include "spec/grid.h"
#include "spec/piece.h"
#include "tests/transport/loopback.h"
#include "transport/service.h"
#include "worker/agent.h"
#include "worker/rank_client.h"

namespace isthmus {

// Two tensors; matrix and vector chunks with ragged edges.
v1::Manifest SmallManifest();
// Complete, with a heartbeat short enough for tests to wait for.
v1::RunSpec SmallSpec(const std::vector<std::string>& nodes, uint64_t steps);
Grid SmallGrid(const v1::RunSpec& spec);

// Rank `rank` of `ranks` equal parts of the blocks, contiguous.
ChunkRanges PartOf(const Grid& grid, uint32_t rank, uint32_t ranks);
// Pieces of the part, at most 100 bytes each; values follow from seed and chunk.
std::vector<std::string> PiecesOf(const Grid& grid, const ChunkRanges& part, uint64_t seed);
// The same piece with its last value replaced by a NaN, and a right checksum.
std::string WithNan(std::string piece);

std::string GroupId(char fill);
// A rank's JoinRun as a trainer fills it in.
v1::JoinRunRequest RankJoin(const Grid& grid, uint32_t rank, uint32_t ranks,
                            const std::string& group_id);

// Passes everything on; counts what nodes do.
class CountingHost final : public RoundHost {
 public:
  explicit CountingHost(RoundHost* host) : host_(host) {}
  absl::StatusOr<v1::JoinRunResponse> JoinRun(const v1::JoinRunRequest& request) override {
    return host_->JoinRun(request);
  }
  absl::StatusOr<std::unique_ptr<SubmissionSink>> BeginSubmit(
      const v1::SubmitHeader& header) override {
    ++submissions;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      last_header_ = header;
    }
    return host_->BeginSubmit(header);
  }
  absl::StatusOr<std::shared_ptr<WatchQueue>> Watch(
      const v1::WatchUpdatesRequest& request) override {
    ++watches;
    return host_->Watch(request);
  }
  void WatchEnded(const v1::WatchUpdatesRequest& request,
                  const std::shared_ptr<WatchQueue>& queue) override {
    host_->WatchEnded(request, queue);
  }
  absl::StatusOr<v1::HeartbeatResponse> Heartbeat(const v1::HeartbeatRequest& request) override {
    return host_->Heartbeat(request);
  }
  absl::StatusOr<v1::LeaveRunResponse> LeaveRun(const v1::LeaveRunRequest& request) override {
    return host_->LeaveRun(request);
  }
  absl::StatusOr<std::unique_ptr<SnapshotSink>> BeginUpload(
      const v1::UploadSnapshotHeader& header) override {
    return host_->BeginUpload(header);
  }
  absl::StatusOr<std::unique_ptr<SnapshotSource>> BeginFetch(
      const v1::FetchSnapshotRequest& request) override {
    return host_->BeginFetch(request);
  }

  std::atomic<int> submissions{0};
  std::atomic<int> watches{0};
  // Of the submission that came last.
  v1::SubmitHeader last_header() {
    std::lock_guard<std::mutex> lock(mutex_);
    return last_header_;
  }

 private:
  RoundHost* host_;
  std::mutex mutex_;
  v1::SubmitHeader last_header_;
};

// Destruction is a crash, for both.
class TestCoordinator {
 public:
  // `address`: as an earlier one had, or port 0.
  // `limits`: of its store, which is in memory.
  explicit TestCoordinator(const v1::RunSpec& spec, const std::string& address = "127.0.0.1:0",
                           const StoreLimits& limits = {kStoredRoundsDefault, kKeptUpdateBytesMax,
                                                        kStoredDigestRounds});
  ~TestCoordinator();
  std::string address() const { return server_->addresses()[0]; }
  Coordinator& host() { return *coordinator_; }
  CountingHost& counts() { return *counting_; }

 private:
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<CountingHost> counting_;
  std::unique_ptr<GrpcServer> server_;
};

class TestAgent {
 public:
  TestAgent(const AgentOptions& options, const std::string& socket);
  ~TestAgent();
  Agent& agent() { return *agent_; }

 private:
  std::unique_ptr<Agent> agent_;
  std::unique_ptr<GrpcServer> server_;
};

// Waits until `condition` holds, at most half a minute; false when it never did.
bool Eventually(const std::function<bool()>& condition);

}  // namespace isthmus
