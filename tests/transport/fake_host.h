// A RoundHost whose answers a test sets, and which remembers what reached it.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/limits.h"
#include "transport/round_host.h"

namespace isthmus {

class FakeHost : public RoundHost {
 public:
  // Answers; the default is OK and empty.
  absl::Status join_status;
  absl::Status header_status;
  absl::Status watch_status;
  std::function<absl::Status(const std::string&)> on_piece;
  size_t watch_events_max = kWatchQueueEventsMax;

  absl::StatusOr<v1::JoinRunResponse> JoinRun(const v1::JoinRunRequest& request) override {
    if (!join_status.ok()) return join_status;
    v1::JoinRunResponse response;
    response.set_node(request.node());
    response.set_incarnation(7);
    return response;
  }

  absl::StatusOr<std::unique_ptr<SubmissionSink>> BeginSubmit(
      const v1::SubmitHeader& header) override {
    Change([&] { headers_.push_back(header); });
    if (!header_status.ok()) return header_status;
    return std::unique_ptr<SubmissionSink>(std::make_unique<Sink>(this, header.round()));
  }

  absl::StatusOr<std::shared_ptr<WatchQueue>> Watch(const v1::WatchUpdatesRequest&) override {
    if (!watch_status.ok()) return watch_status;
    const auto queue = std::make_shared<WatchQueue>(watch_events_max);
    Change([&] { queues_.push_back(queue); });
    return queue;
  }

  void WatchEnded(const v1::WatchUpdatesRequest&,
                  const std::shared_ptr<WatchQueue>& queue) override {
    Change([&] { ended_.push_back(queue); });
  }

  absl::StatusOr<v1::HeartbeatResponse> Heartbeat(const v1::HeartbeatRequest& request) override {
    v1::HeartbeatResponse response;
    response.set_waiting_for("waiting for " + request.node());
    response.set_lease_ms(15000);
    return response;
  }

  absl::StatusOr<v1::LeaveRunResponse> LeaveRun(const v1::LeaveRunRequest& request) override {
    Change([&] { left_.push_back(request.reason()); });
    return v1::LeaveRunResponse();
  }

  // What reached the host.
  std::vector<v1::SubmitHeader> headers() { return Read(headers_); }
  std::vector<std::string> pieces() { return Read(pieces_); }
  std::vector<std::shared_ptr<WatchQueue>> queues() { return Read(queues_); }
  std::vector<std::shared_ptr<WatchQueue>> ended() { return Read(ended_); }
  std::vector<std::string> left() { return Read(left_); }
  size_t sinks_destroyed() { return Read(sinks_destroyed_); }

  // Waits until the condition holds; false after 20 s.
  bool WaitFor(const std::function<bool()>& condition) {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (true) {
      lock.unlock();
      if (condition()) return true;
      lock.lock();
      if (changed_.wait_until(lock, std::min(end, std::chrono::steady_clock::now() +
                                                      std::chrono::milliseconds(20))) ==
              std::cv_status::timeout &&
          std::chrono::steady_clock::now() >= end) {
        return false;
      }
    }
  }

 private:
  class Sink final : public SubmissionSink {
   public:
    Sink(FakeHost* host, uint64_t round) : host_(host), round_(round) {}
    ~Sink() override {
      host_->Change([this] { ++host_->sinks_destroyed_; });
    }
    absl::Status AddPiece(std::string piece) override {
      if (host_->on_piece) {
        if (absl::Status status = host_->on_piece(piece); !status.ok()) return status;
      }
      host_->Change([&] { host_->pieces_.push_back(std::move(piece)); });
      return absl::OkStatus();
    }
    absl::StatusOr<v1::SubmitResponse> End(const v1::SubmitEnd& end) override {
      v1::SubmitResponse response;
      response.set_round(round_);
      response.set_complete(true);
      response.set_digest(end.digest());
      return response;
    }

   private:
    FakeHost* host_;
    uint64_t round_;
  };

  template <typename Action>
  void Change(const Action& action) {
    std::lock_guard<std::mutex> lock(mutex_);
    action();
    changed_.notify_all();
  }
  template <typename Value>
  Value Read(const Value& value) {
    std::lock_guard<std::mutex> lock(mutex_);
    return value;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<v1::SubmitHeader> headers_;
  std::vector<std::string> pieces_;
  std::vector<std::shared_ptr<WatchQueue>> queues_;
  std::vector<std::shared_ptr<WatchQueue>> ended_;
  std::vector<std::string> left_;
  size_t sinks_destroyed_ = 0;
};

}  // namespace isthmus
