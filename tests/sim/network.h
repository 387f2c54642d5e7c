// The network between nodes and the coordinator, on the level of calls: a call may be lost on its
// way there or back, come twice or much later, overtake others; a stream keeps its order and breaks
// off; a partition cuts one direction or both. What the transport promises in life (a stream is
// ordered, nobody else speaks for a node) holds here too.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/limits.h"
#include "isthmus/v1/coordinator.pb.h"
#include "server/coordinator.h"
#include "tests/sim/coordinator_process.h"
#include "tests/sim/scene.h"
#include "transport/session.h"

namespace isthmus::sim {

// A node's way to the coordinator and back.
class Link {
 public:
  Link(Scene* scene, CoordinatorProcess* coordinator) : scene_(scene), coordinator_(coordinator) {}

  // Nothing comes through for so long.
  void Cut(bool up, bool down, int64_t ms);

  // A call with one answer. `done` runs on the caller, in its present life, once.
  template <typename Response>
  void Call(Process* caller, std::function<absl::StatusOr<Response>(Coordinator&)> serve,
            std::function<void(absl::StatusOr<Response>)> done);

  using Receipt = absl::StatusOr<v1::SubmitResponse>;
  void Submit(Process* caller, const v1::SubmitHeader& header,
              std::shared_ptr<const Submission> submission, std::function<void(Receipt)> done);

  // A watch until it ends or is given up; `ended` runs once, or not at all.
  class WatchCall;
  std::shared_ptr<WatchCall> Watch(Process* caller, const v1::WatchUpdatesRequest& request,
                                   std::function<void(WatchEvent)> event,
                                   std::function<void(absl::Status)> ended);
  void GiveUp(const std::shared_ptr<WatchCall>& call);

 private:
  struct SubmitCall;
  int64_t Delay();
  // How late a copy of a call comes; -1: there is none.
  int64_t ReplayDelay();
  bool PassesUp();
  bool PassesDown();
  // When the caller notices that a connection is gone.
  int64_t NoticeDelay();
  void Forge(SubmitCall* call);
  void SendStep(const std::shared_ptr<SubmitCall>& call, size_t step);
  void Pump(const std::shared_ptr<WatchCall>& call);
  void Break(const std::shared_ptr<WatchCall>& call);

  Scene* const scene_;
  CoordinatorProcess* const coordinator_;
  int64_t up_cut_until_ms_ = 0;
  int64_t down_cut_until_ms_ = 0;
};

template <typename Response>
void Link::Call(Process* caller, std::function<absl::StatusOr<Response>(Coordinator&)> serve,
                std::function<void(absl::StatusOr<Response>)> done) {
  auto once = std::make_shared<std::function<void(absl::StatusOr<Response>)>>(std::move(done));
  const auto answer = [once](absl::StatusOr<Response> response) {
    if (*once == nullptr) return;
    std::exchange(*once, nullptr)(std::move(response));
  };
  caller->After(kCallTimeoutMs,
                [answer] { answer(absl::DeadlineExceededError("no answer in time")); });
  const auto lost = [=] {
    caller->After(NoticeDelay(), [answer] { answer(absl::UnavailableError("connection lost")); });
  };
  if (const int64_t later_ms = ReplayDelay(); later_ms >= 0) {
    coordinator_->Receive(
        later_ms, [serve](Coordinator& host) { (void)serve(host); }, [] {});
  }
  if (!PassesUp()) return lost();
  coordinator_->Receive(
      Delay(),
      [=](Coordinator& host) {
        absl::StatusOr<Response> response = serve(host);
        // A dying process answers nobody.
        if (coordinator_->dying() || !PassesDown()) return lost();
        caller->After(Delay(), [answer, response] { answer(response); });
      },
      lost);
}

}  // namespace isthmus::sim
