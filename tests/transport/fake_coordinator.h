// A run with one node, small enough for tests of sessions: a round commits when its contribution is
// complete. What was committed lasts over restarts of the gRPC server in front of it; contributions
// to open rounds do not (Forget).
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "spec/update_record.h"
#include "transport/errors.h"
#include "transport/round_host.h"

namespace isthmus {

class FakeCoordinator : public RoundHost {
 public:
  struct Options {
    uint64_t rounds = 3;
    bool commits = true;  // else contributions are held, and no round closes
  };
  explicit FakeCoordinator(const Options& options) : options_(options) {}

  // As a restart: incarnations are unknown, open contributions are gone.
  void Forget() {
    std::lock_guard<std::mutex> lock(mutex_);
    incarnation_valid_ = false;
    held_.clear();
  }
  void Commit() {
    std::lock_guard<std::mutex> lock(mutex_);
    options_.commits = true;
    CommitIfComplete();
  }
  // Ends the watch with `status`.
  void EndWatch(const absl::Status& status) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (queue_ != nullptr) queue_->Close(status);
  }
  void RefuseJoin(const absl::Status& status) {
    std::lock_guard<std::mutex> lock(mutex_);
    join_refusal_ = status;
  }
  void RefuseSubmit(const absl::Status& status) {
    std::lock_guard<std::mutex> lock(mutex_);
    submit_refusal_ = status;
  }
  std::vector<v1::JoinRunRequest> joins() { return Read(joins_); }
  std::vector<v1::SubmitHeader> headers() { return Read(headers_); }
  std::vector<v1::HeartbeatRequest> beats() { return Read(beats_); }
  std::vector<v1::LeaveRunRequest> leaves() { return Read(leaves_); }
  size_t held() {
    std::lock_guard<std::mutex> lock(mutex_);
    return held_.size();
  }
  std::string PayloadOf(uint64_t round) {
    std::lock_guard<std::mutex> lock(mutex_);
    return payloads_.at(round - 1);
  }

  absl::StatusOr<v1::JoinRunResponse> JoinRun(const v1::JoinRunRequest& request) override {
    std::lock_guard<std::mutex> lock(mutex_);
    joins_.push_back(request);
    if (!join_refusal_.ok()) return join_refusal_;
    incarnation_valid_ = true;
    ++incarnation_;
    v1::JoinRunResponse response;
    response.mutable_spec()->set_run("run");
    response.mutable_spec()->mutable_timing()->set_heartbeat_ms(20);
    response.set_incarnation(incarnation_);
    response.set_attempt(request.attempt() != 0 ? request.attempt() : incarnation_);
    response.set_committed_round(records_.size());
    response.set_node(request.node());
    return response;
  }

  absl::StatusOr<std::unique_ptr<SubmissionSink>> BeginSubmit(
      const v1::SubmitHeader& header) override {
    std::lock_guard<std::mutex> lock(mutex_);
    headers_.push_back(header);
    if (!submit_refusal_.ok()) return submit_refusal_;
    if (absl::Status status = CheckIncarnation(header.incarnation()); !status.ok()) return status;
    if (header.round() != records_.size() + 1) {
      return WithReason(absl::FailedPreconditionError("round is not open"), "ROUND_NOT_OPEN");
    }
    return std::unique_ptr<SubmissionSink>(std::make_unique<Sink>(this, header));
  }

  absl::StatusOr<std::shared_ptr<WatchQueue>> Watch(
      const v1::WatchUpdatesRequest& request) override {
    std::lock_guard<std::mutex> lock(mutex_);
    if (absl::Status status = CheckIncarnation(request.incarnation()); !status.ok()) return status;
    queue_ = std::make_shared<WatchQueue>(1000);
    auto start = std::make_shared<v1::WatchUpdatesResponse>();
    start->mutable_start()->set_committed_round(records_.size());
    for (const auto& [round, held] : held_) *start->mutable_start()->add_held() = held;
    queue_->Push(start);
    for (uint64_t round = request.last_round() + 1; round <= records_.size(); ++round) {
      PushOpened(round);
      PushUpdate(round);
    }
    PushNext();
    return queue_;
  }

  void WatchEnded(const v1::WatchUpdatesRequest&,
                  const std::shared_ptr<WatchQueue>& queue) override {
    std::lock_guard<std::mutex> lock(mutex_);
    if (queue_ == queue) queue_ = nullptr;
  }

  absl::StatusOr<v1::HeartbeatResponse> Heartbeat(const v1::HeartbeatRequest& request) override {
    std::lock_guard<std::mutex> lock(mutex_);
    beats_.push_back(request);
    if (absl::Status status = CheckIncarnation(request.incarnation()); !status.ok()) return status;
    v1::HeartbeatResponse response;
    response.set_waiting_for("waiting for fra-2");
    return response;
  }

  absl::StatusOr<v1::LeaveRunResponse> LeaveRun(const v1::LeaveRunRequest& request) override {
    std::lock_guard<std::mutex> lock(mutex_);
    leaves_.push_back(request);
    if (queue_ != nullptr) queue_->Close(absl::AbortedError("left"));
    return v1::LeaveRunResponse();
  }

 private:
  class Sink final : public SubmissionSink {
   public:
    Sink(FakeCoordinator* host, const v1::SubmitHeader& header) : host_(host), header_(header) {}
    absl::Status AddPiece(std::string piece) override {
      payload_ += piece;
      return absl::OkStatus();
    }
    absl::StatusOr<v1::SubmitResponse> End(const v1::SubmitEnd& end) override {
      std::lock_guard<std::mutex> lock(host_->mutex_);
      v1::HeldContribution& held = host_->held_[header_.round()];
      held.set_round(header_.round());
      held.set_attempt(header_.attempt());
      held.set_complete(true);
      held.set_digest(end.digest());
      host_->open_payload_ = payload_;
      host_->CommitIfComplete();
      v1::SubmitResponse response;
      response.set_round(header_.round());
      response.set_complete(true);
      return response;
    }

   private:
    FakeCoordinator* host_;
    v1::SubmitHeader header_;
    std::string payload_;
  };

  template <typename Value>
  Value Read(const Value& value) {
    std::lock_guard<std::mutex> lock(mutex_);
    return value;
  }

  // All below under the mutex.
  absl::Status CheckIncarnation(uint64_t incarnation) {
    if (incarnation_valid_ && incarnation == incarnation_) return absl::OkStatus();
    return WithReason(absl::FailedPreconditionError("join first"), kReasonIncarnationFenced);
  }

  void CommitIfComplete() {
    const uint64_t round = records_.size() + 1;
    if (!options_.commits || held_.count(round) == 0) return;
    v1::UpdateRecord record;
    record.set_round(round);
    record.set_pieces(1);
    record.set_payload_bytes(open_payload_.size());
    if (!records_.empty()) record.set_previous_sha256(records_.back().sha256());
    record.set_sha256(UpdateRecordSha256(record));
    records_.push_back(record);
    payloads_.push_back(open_payload_);
    held_.erase(round);
    if (queue_ == nullptr) return;
    PushUpdate(round);
    PushNext();
  }

  void PushNext() {
    if (records_.size() < options_.rounds) {
      PushOpened(records_.size() + 1);
      return;
    }
    auto event = std::make_shared<v1::WatchUpdatesResponse>();
    event->mutable_finished()->set_round(records_.size());
    queue_->Push(event);
  }

  void PushOpened(uint64_t round) {
    auto event = std::make_shared<v1::WatchUpdatesResponse>();
    event->mutable_opened()->set_round(round);
    queue_->Push(event);
  }

  void PushUpdate(uint64_t round) {
    auto update = std::make_shared<v1::WatchUpdatesResponse>();
    *update->mutable_update() = records_[round - 1];
    update->set_pieces_following(1);
    queue_->Push(update);
    auto piece = std::make_shared<v1::WatchUpdatesResponse>();
    piece->mutable_piece()->set_round(round);
    piece->mutable_piece()->set_data(payloads_[round - 1]);
    queue_->Push(piece);
  }

  std::mutex mutex_;
  Options options_;
  absl::Status join_refusal_;
  absl::Status submit_refusal_;
  uint64_t incarnation_ = 0;
  bool incarnation_valid_ = false;
  std::vector<v1::UpdateRecord> records_;
  std::vector<std::string> payloads_;
  std::map<uint64_t, v1::HeldContribution> held_;
  std::string open_payload_;
  std::shared_ptr<WatchQueue> queue_;
  std::vector<v1::JoinRunRequest> joins_;
  std::vector<v1::SubmitHeader> headers_;
  std::vector<v1::HeartbeatRequest> beats_;
  std::vector<v1::LeaveRunRequest> leaves_;
};

}  // namespace isthmus
