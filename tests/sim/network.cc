#include "tests/sim/network.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/spec/forgery.h"

namespace isthmus::sim {
namespace {

// A copy of a call may come so much later: after other rounds, leases and lives.
constexpr int64_t kReplayMsMax = 20000;
// A connection that broke is noticed at once (reset) or when the keep-alive has run out.
constexpr int64_t kNoticeMsMax = 3000;

}  // namespace

void Link::Cut(bool up, bool down, int64_t ms) {
  const int64_t until_ms = scene_->world.NowMs() + ms;
  if (up) up_cut_until_ms_ = std::max(up_cut_until_ms_, until_ms);
  if (down) down_cut_until_ms_ = std::max(down_cut_until_ms_, until_ms);
}

int64_t Link::Delay() { return scene_->world.random().Between(1, scene_->plan.delay_max_ms); }

int64_t Link::ReplayDelay() {
  if (scene_->healed() || !scene_->world.random().Chance(scene_->plan.replay_permille)) return -1;
  return scene_->world.random().Between(0, kReplayMsMax);
}

bool Link::PassesUp() {
  if (scene_->healed()) return true;
  const bool lost = scene_->world.random().Chance(scene_->plan.loss_permille);
  return !lost && scene_->world.NowMs() >= up_cut_until_ms_;
}

bool Link::PassesDown() {
  if (scene_->healed()) return true;
  const bool lost = scene_->world.random().Chance(scene_->plan.loss_permille);
  return !lost && scene_->world.NowMs() >= down_cut_until_ms_;
}

int64_t Link::NoticeDelay() { return scene_->world.random().Between(1, kNoticeMsMax); }

// --- Submit: header, pieces, end, one after the other.

struct Link::SubmitCall {
  Process* caller = nullptr;
  v1::SubmitHeader header;
  std::shared_ptr<const Submission> submission;
  std::function<void(Receipt)> done;  // null: answered, or a copy that nobody waits for
  uint64_t coordinator_life = 0;      // of the one that has the header
  uint64_t sink = 0;
  int64_t arrives_ms = 0;  // the last step so far

  size_t steps() const { return submission->pieces.size() + 2; }
  void Answer(Receipt receipt) {
    if (done != nullptr) std::exchange(done, nullptr)(std::move(receipt));
  }
};

// Another value in the last piece, under the same run, round, node and attempt.
void Link::Forge(SubmitCall* call) {
  if (call->submission->pieces.empty()) return;
  auto forged = std::make_shared<Submission>(*call->submission);
  SetLastValue(scene_->world.random().Value(), &forged->pieces.back());
  call->submission = std::move(forged);
}

void Link::Submit(Process* caller, const v1::SubmitHeader& header,
                  std::shared_ptr<const Submission> submission, std::function<void(Receipt)> done) {
  const auto call = std::make_shared<SubmitCall>();
  call->caller = caller;
  call->header = header;
  call->submission = std::move(submission);
  if (const int64_t later_ms = ReplayDelay(); later_ms >= 0) {
    const auto copy = std::make_shared<SubmitCall>(*call);
    copy->arrives_ms = scene_->world.NowMs() + later_ms;
    if (scene_->world.random().Chance(scene_->plan.forge_permille)) Forge(copy.get());
    SendStep(copy, 0);
  }
  call->done = std::move(done);
  caller->After(kSubmitStallTimeoutMs,
                [call] { call->Answer(absl::DeadlineExceededError("no answer in time")); });
  SendStep(call, 0);
}

// Sends one step; the next one follows when it has arrived.
void Link::SendStep(const std::shared_ptr<SubmitCall>& call, size_t step) {
  const auto lost = [this, call] {
    coordinator_->DropSink(call->sink);
    call->caller->After(NoticeDelay(),
                        [call] { call->Answer(absl::UnavailableError("connection lost")); });
  };
  if (!PassesUp()) return lost();
  const int64_t now_ms = scene_->world.NowMs();
  call->arrives_ms = std::max(call->arrives_ms, now_ms + Delay());
  coordinator_->Receive(
      call->arrives_ms - now_ms,
      [this, call, step, lost](Coordinator& host) {
        Receipt receipt = v1::SubmitResponse();
        const bool last = step + 1 == call->steps();
        if (step == 0) {
          auto sink = host.BeginSubmit(call->header);
          call->coordinator_life = coordinator_->process().life();
          if (sink.ok()) {
            call->sink = coordinator_->AddSink(*std::move(sink));
          } else {
            receipt = sink.status();
          }
        } else {
          SubmissionSink* sink = coordinator_->FindSink(call->sink);
          const bool same = call->coordinator_life == coordinator_->process().life();
          if (!same || sink == nullptr) return lost();
          if (last) {
            v1::SubmitEnd end;
            end.set_digest(call->submission->digest);
            receipt = sink->End(end);
          } else {
            const absl::Status taken = sink->AddPiece(call->submission->pieces[step - 1]);
            if (!taken.ok()) receipt = taken;
          }
        }
        if (coordinator_->dying()) return lost();
        if (!last && receipt.ok()) return SendStep(call, step + 1);
        coordinator_->DropSink(call->sink);
        if (!PassesDown()) return lost();
        call->caller->After(Delay(), [call, receipt] { call->Answer(receipt); });
      },
      lost);
}

// --- Watch.

class Link::WatchCall {
 public:
  Process* caller = nullptr;
  v1::WatchUpdatesRequest request;
  std::function<void(WatchEvent)> event;
  std::function<void(absl::Status)> ended;  // null: told
  std::shared_ptr<WatchQueue> queue;        // of the coordinator; null: none any more
  int64_t arrives_ms = 0;                   // the last event so far
  bool broken = false;
  bool given_up = false;  // by the caller

  void End(const absl::Status& status) {
    if (ended != nullptr && !given_up) std::exchange(ended, nullptr)(status);
  }
};

std::shared_ptr<Link::WatchCall> Link::Watch(Process* caller,
                                             const v1::WatchUpdatesRequest& request,
                                             std::function<void(WatchEvent)> event,
                                             std::function<void(absl::Status)> ended) {
  const auto call = std::make_shared<WatchCall>();
  call->caller = caller;
  call->request = request;
  if (const int64_t later_ms = ReplayDelay(); later_ms >= 0) {
    coordinator_->Receive(
        later_ms, [request](Coordinator& host) { (void)host.Watch(request); }, [] {});
  }
  call->event = std::move(event);
  call->ended = std::move(ended);
  const auto lost = [this, call] {
    call->caller->After(NoticeDelay(), [call] { call->End(absl::UnavailableError("lost")); });
  };
  if (!PassesUp()) {
    lost();
    return call;
  }
  coordinator_->Receive(
      Delay(),
      [this, call](Coordinator& host) {
        const absl::StatusOr<std::shared_ptr<WatchQueue>> queue = host.Watch(call->request);
        if (!queue.ok()) {
          const absl::Status status = queue.status();
          call->caller->After(Delay(), [call, status] { call->End(status); });
          return;
        }
        call->queue = *queue;
        const uint64_t life = coordinator_->process().life();
        coordinator_->OnDone([this, call] {
          Pump(call);
          return call->queue != nullptr;
        });
        // The connection goes down with the process.
        coordinator_->OnCrash([this, call, life] {
          if (call->queue == nullptr || life != coordinator_->process().life()) return;
          call->queue = nullptr;
          call->caller->After(NoticeDelay(), [call] { call->End(absl::UnavailableError("gone")); });
        });
      },
      lost);
  return call;
}

void Link::Pump(const std::shared_ptr<WatchCall>& call) {
  while (call->queue != nullptr) {
    if (call->given_up) return Break(call);
    WatchQueue::Taken taken = call->queue->Take();
    if (taken.event == nullptr && !taken.closed) return;
    if (!PassesDown()) return Break(call);
    const int64_t now_ms = scene_->world.NowMs();
    call->arrives_ms = std::max(call->arrives_ms, now_ms + Delay());
    if (taken.closed) {
      call->queue = nullptr;
      call->caller->After(call->arrives_ms - now_ms,
                          [call, status = taken.status] { call->End(status); });
      return;
    }
    if (taken.event->has_update()) {
      Event left;
      left.kind = EventKind::kPublished;
      left.round = taken.event->update().round();
      left.sha256 = taken.event->update().sha256();
      scene_->Record(left);
    }
    call->caller->After(call->arrives_ms - now_ms, [call, event = std::move(taken.event)] {
      if (!call->broken && !call->given_up) call->event(event);
    });
  }
}

// Both ends notice, each at its own time.
void Link::Break(const std::shared_ptr<WatchCall>& call) {
  const std::shared_ptr<WatchQueue> queue = std::exchange(call->queue, nullptr);
  coordinator_->Receive(
      NoticeDelay(), [call, queue](Coordinator& host) { host.WatchEnded(call->request, queue); },
      [] {});
  call->caller->After(NoticeDelay(), [call] {
    call->broken = true;
    call->End(absl::UnavailableError("connection lost"));
  });
}

void Link::GiveUp(const std::shared_ptr<WatchCall>& call) {
  if (call == nullptr || call->given_up) return;
  call->given_up = true;
  call->ended = nullptr;
  if (call->queue != nullptr) Break(call);
}

}  // namespace isthmus::sim
