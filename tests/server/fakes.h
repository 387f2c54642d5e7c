// A coordinator on a clock that stands still until told, and nodes that do what agents do.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/sha256.h"
#include "isthmus/v1/coordinator.pb.h"
#include "server/coordinator.h"
#include "spec/manifest.h"
#include "spec/rounds.h"
#include "tests/server/outer_runs.h"
#include "tests/server/payloads.h"
#include "transport/watch_queue.h"

namespace isthmus {

class FakeClock final : public Clock {
 public:
  int64_t NowMs() const override { return now_ms_; }
  void Advance(int64_t ms) { now_ms_ += ms; }

 private:
  std::atomic<int64_t> now_ms_{1000};
};

// Takes events from a queue, waiting for them.
class WatchReader {
 public:
  explicit WatchReader(std::shared_ptr<WatchQueue> queue) : queue_(std::move(queue)) {
    queue_->OnReady([shared = shared_] {
      std::lock_guard<std::mutex> lock(shared->mutex);
      shared->ready = true;
      shared->wake.notify_all();
    });
  }

  // The next event or the end; a failure of the test after ten seconds without any.
  WatchQueue::Taken Next() {
    while (true) {
      WatchQueue::Taken taken = queue_->Take();
      if (taken.event != nullptr || taken.closed) return taken;
      std::unique_lock<std::mutex> lock(shared_->mutex);
      if (!shared_->wake.wait_for(lock, std::chrono::seconds(10), [&] { return shared_->ready; })) {
        ADD_FAILURE() << "nothing came on the watch for 10 s";
        taken.closed = true;
        taken.status = absl::DeadlineExceededError("test");
        return taken;
      }
      shared_->ready = false;
    }
  }

  v1::WatchUpdatesResponse NextEvent() {
    const WatchQueue::Taken taken = Next();
    if (taken.event != nullptr) return *taken.event;
    ADD_FAILURE() << "the watch ended: " << taken.status;
    return {};
  }

  bool Empty() {
    const WatchQueue::Taken taken = queue_->Take();
    return taken.event == nullptr && !taken.closed;
  }

  const std::shared_ptr<WatchQueue>& queue() const { return queue_; }

 private:
  struct Shared {
    std::mutex mutex;
    std::condition_variable wake;
    bool ready = false;
  };
  std::shared_ptr<WatchQueue> queue_;
  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
};

// An update as it came on a watch.
struct ReceivedUpdate {
  v1::UpdateRecord record;
  std::vector<std::string> pieces;
};

// A node, as an agent would speak for it. The fields may be spoilt before a call.
class FakeNode {
 public:
  // `outer`: the spec of a run with local steps, which outlives the node; null: every step.
  FakeNode(RoundHost* host, const std::string& name, const v1::RunSpec* outer = nullptr)
      : host_(host), name_(name), outer_(outer) {
    if (outer_ != nullptr) grid_ = GridOf(outer_->codec());
    join_request.set_run("test");
    join_request.set_node(name);
    join_request.set_role(v1::ROLE_NODE);
    *join_request.mutable_manifest() = TestManifest();
    join_request.set_fingerprint(Fingerprint(join_request.manifest()));
    join_request.set_state_sha256(Sha256Of("start state"));
    join_request.set_secret("secret of node " + name);
  }

  // From here on it speaks to this coordinator, with what it has; its watch is gone.
  void Reconnect(RoundHost* host) {
    host_ = host;
    reader = nullptr;
  }

  absl::Status Join() {
    const auto response = host_->JoinRun(join_request);
    if (!response.ok()) return response.status();
    joined = *response;
    return absl::OkStatus();
  }

  v1::WatchUpdatesRequest WatchRequest() const {
    v1::WatchUpdatesRequest request;
    request.set_run("test");
    request.set_node(name_);
    request.set_role(v1::ROLE_NODE);
    request.set_incarnation(joined.incarnation());
    request.set_last_round(join_request.last_round());
    request.set_last_update_sha256(join_request.last_update_sha256());
    return request;
  }

  // Opens the watch and reads its start.
  v1::WatchStart Watch() { return Watch(WatchRequest()); }
  v1::WatchStart Watch(const v1::WatchUpdatesRequest& request) {
    auto queue = host_->Watch(request);
    EXPECT_TRUE(queue.ok()) << queue.status();
    if (!queue.ok()) return {};
    reader = std::make_unique<WatchReader>(*queue);
    return reader->NextEvent().start();
  }

  void JoinAndWatch() {
    const absl::Status status = Join();
    ASSERT_TRUE(status.ok()) << status;
    Watch();
  }

  v1::SubmitHeader Header(uint64_t round, const std::vector<std::string>& pieces) const {
    v1::SubmitHeader header;
    header.set_run("test");
    header.set_node(name_);
    header.set_role(v1::ROLE_NODE);
    header.set_round(round);
    header.set_base_round(round - std::min<uint64_t>(round, 1 + joined.spec().overlap()));
    header.set_incarnation(joined.incarnation());
    header.set_attempt(joined.attempt());
    header.set_codec(v1::PAYLOAD_CODEC_COMPONENTS);
    header.set_tokens(1024);
    header.set_steps(1);
    if (outer_ != nullptr) {
      const float gamma = RoundLearningRate(*outer_, round);
      uint32_t lr_bits = 0;
      std::memcpy(&lr_bits, &gamma, sizeof(lr_bits));
      header.set_lr_bits(lr_bits);
      header.set_codec(ContributionLayout(outer_->codec()));
      header.set_steps(StepAfterRound(*outer_, round) - StepAfterRound(*outer_, round - 1));
    }
    header.set_payload_bytes(BytesOf(pieces));
    header.set_acknowledged_round(header.base_round());
    v1::ChunkRange* all = header.add_ranges();
    all->set_end(grid_->chunks());
    return header;
  }

  // One whole call. The digest goes into the end.
  absl::StatusOr<v1::SubmitResponse> Submit(const v1::SubmitHeader& header,
                                            const std::vector<std::string>& pieces,
                                            const std::string& digest) {
    auto sink = host_->BeginSubmit(header);
    if (!sink.ok()) return sink.status();
    for (const std::string& piece : pieces) {
      const absl::Status status = (*sink)->AddPiece(piece);
      if (!status.ok()) return status;
    }
    v1::SubmitEnd end;
    end.set_digest(digest);
    return (*sink)->End(end);
  }

  absl::StatusOr<v1::SubmitResponse> SubmitRandom(uint64_t round, uint32_t seed) {
    const auto pieces = RandomContribution(*grid_, seed);
    return Submit(Header(round, pieces), pieces, DigestOf(*grid_, pieces));
  }

  absl::StatusOr<v1::SubmitResponse> Abstain(uint64_t round, const std::string& reason) {
    v1::SubmitHeader header = Header(round, {});
    header.clear_ranges();
    header.set_abstain_reason(reason);
    return Submit(header, {}, "");
  }

  absl::StatusOr<v1::HeartbeatResponse> Beat(uint64_t acknowledged = 0,
                                             const std::string& waiting_for = "",
                                             uint64_t checkpoint_round = 0) {
    v1::HeartbeatRequest request;
    request.set_run("test");
    request.set_node(name_);
    request.set_incarnation(joined.incarnation());
    request.set_acknowledged_round(acknowledged);
    request.set_waiting_for(waiting_for);
    request.set_checkpoint_round(checkpoint_round);
    return host_->Heartbeat(request);
  }

  absl::Status Leave() {
    v1::LeaveRunRequest request;
    request.set_run("test");
    request.set_node(name_);
    request.set_role(v1::ROLE_NODE);
    request.set_incarnation(joined.incarnation());
    request.set_reason("test");
    return host_->LeaveRun(request).status();
  }

  // Expects the opening of this round next on the watch.
  v1::RoundOpened ExpectOpened(uint64_t round) {
    const v1::WatchUpdatesResponse event = reader->NextEvent();
    EXPECT_EQ(event.event_case(), v1::WatchUpdatesResponse::kOpened) << event.ShortDebugString();
    EXPECT_EQ(event.opened().round(), round);
    return event.opened();
  }

  // Expects this round's update next on the watch, and all of its pieces.
  ReceivedUpdate ExpectUpdate(uint64_t round) {
    ReceivedUpdate update;
    const v1::WatchUpdatesResponse event = reader->NextEvent();
    EXPECT_EQ(event.event_case(), v1::WatchUpdatesResponse::kUpdate) << event.ShortDebugString();
    update.record = event.update();
    EXPECT_EQ(update.record.round(), round);
    for (uint32_t i = 0; i < event.pieces_following(); ++i) {
      const v1::WatchUpdatesResponse piece = reader->NextEvent();
      EXPECT_EQ(piece.piece().round(), round);
      update.pieces.push_back(piece.piece().data());
    }
    join_request.set_last_round(round);
    join_request.set_last_update_sha256(update.record.sha256());
    return update;
  }

  v1::JoinRunRequest join_request;
  v1::JoinRunResponse joined;
  std::unique_ptr<WatchReader> reader;

 private:
  RoundHost* host_;
  std::string name_;
  const v1::RunSpec* outer_;
  std::shared_ptr<const Grid> grid_ = TestGrid();
};

// A coordinator on a clock of the test's own.
struct TestCoordinator {
  explicit TestCoordinator(const v1::RunSpec& spec, size_t kept_bytes = size_t{1} << 30,
                           const HistoryLimits& history = HistoryLimits())
      : TestCoordinator(spec,
                        MakeMemoryStore({kStoredRoundsDefault, kept_bytes, kStoredDigestRounds}),
                        history) {}
  // Goes on with what the store holds.
  TestCoordinator(const v1::RunSpec& spec, std::shared_ptr<Store> store,
                  const HistoryLimits& history = HistoryLimits(), CoordinatorOptions options = {}) {
    options.spec = spec;
    options.store = std::move(store);
    options.clock = &clock;
    options.history = history;
    options.ticks_by_itself = false;
    options.on_disk_failure = [this](const absl::Status& why) {
      std::lock_guard<std::mutex> lock(mutex);
      disk_failure = why;
      changed.notify_all();
    };
    auto started = Coordinator::Start(std::move(options));
    EXPECT_TRUE(started.ok()) << started.status();
    host = *std::move(started);
  }

  // Waits until the coordinator has found that its disk failed.
  absl::Status DiskFailure() {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait_for(lock, std::chrono::seconds(10), [this] { return !disk_failure.ok(); });
    return disk_failure;
  }

  // Lets time pass as it does in life, with a tick every 100 ms.
  void Pass(int64_t ms, const std::vector<FakeNode*>& beating = {}) {
    for (int64_t passed = 0; passed < ms; passed += 100) {
      clock.Advance(100);
      if (passed % 3000 == 0) {
        for (FakeNode* node : beating) {
          const absl::Status status = node->Beat().status();
          EXPECT_TRUE(status.ok()) << status;
        }
      }
      host->Tick();
    }
  }

  FakeClock clock;
  std::mutex mutex;
  std::condition_variable changed;
  absl::Status disk_failure;
  std::unique_ptr<Coordinator> host;  // last, so that it ends first
};

}  // namespace isthmus
