#include "server/monitor_watch.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/limits.h"
#include "server/monitor_view.h"
#include "transport/errors.h"
#include "transport/grpc_status.h"

namespace isthmus {
namespace {

using WriteReactor = grpc::ServerWriteReactor<v1::WatchRoundsResponse>;

// The thread looks up now and then even if nobody woke it.
constexpr int kLookMs = 500;

class RefusedWatch final : public WriteReactor {
 public:
  explicit RefusedWatch(const absl::Status& status) { Finish(ToGrpcStatus(status)); }
  void OnDone() override { delete this; }
};

}  // namespace

class RoundWatch final : public WriteReactor, public std::enable_shared_from_this<RoundWatch> {
 public:
  RoundWatch(RoundWatches* watches, RoundHistory* history) : watches_(watches), history_(history) {}

  void Start(RoundHistory::Start start) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      self_ = shared_from_this();
      cursor_ = start.cursor;
      next_ = std::make_shared<const v1::WatchRoundsResponse>(std::move(start.current));
      run_is_over_ = start.finished;
      started_ = true;
    }
    Pump();
  }

  // After the message under way.
  void Close(const absl::Status& status) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!closed_.ok()) return;
      closed_ = status;
    }
    Pump();
  }

  void OnWriteDone(bool ok) override {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      writing_ = false;
      current_ = nullptr;
      if (!ok) cancelled_ = true;
    }
    Pump();
  }

  void OnCancel() override {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      cancelled_ = true;
    }
    Pump();
  }

  void OnDone() override {
    const auto self = std::move(self_);
    watches_->Remove(self);
  }

  // Starts the next write, or finishes. At most one of them is under way, and nothing after Finish,
  // so gRPC is called without the mutex: it may call back from inside.
  void Pump() {
    const v1::WatchRoundsResponse* write = nullptr;
    absl::Status end;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!started_ || writing_ || finished_) return;
      if (!DecideLocked(&end)) return;
      if (current_ != nullptr) {
        writing_ = true;
        write = current_.get();
      } else {
        finished_ = true;
      }
    }
    if (write != nullptr) {
      StartWrite(write);
    } else {
      Finish(ToGrpcStatus(end));
    }
  }

 private:
  // True: write current_, or end with `end` when it is null.
  bool DecideLocked(absl::Status* end) {
    if (cancelled_) {
      *end = absl::CancelledError("the watcher went away");
      return true;
    }
    if (next_ != nullptr) {
      current_ = std::exchange(next_, nullptr);
      return true;
    }
    if (run_is_over_) return true;
    if (!closed_.ok()) {
      *end = closed_;
      return true;
    }
    const RoundHistory::ReadResult read = history_->Read(cursor_);
    if (read.lost) {
      *end = WithReason(
          absl::ResourceExhaustedError("this watcher fell behind: changes it has not read are no "
                                       "longer kept; watch again to see how things stand"),
          "WATCHER_BEHIND");
      return true;
    }
    if (read.change == nullptr) return false;
    ++cursor_;
    current_ = read.change;
    run_is_over_ = read.change->change() == v1::ROUND_CHANGE_FINISHED;
    return true;
  }

  RoundWatches* const watches_;
  RoundHistory* const history_;
  std::shared_ptr<RoundWatch> self_;  // until OnDone

  std::mutex mutex_;
  uint64_t cursor_ = 0;
  RoundChangePtr next_;     // before those of the history
  RoundChangePtr current_;  // kept while gRPC writes it
  absl::Status closed_;
  bool started_ = false;
  bool run_is_over_ = false;
  bool writing_ = false;
  bool cancelled_ = false;
  bool finished_ = false;
};

RoundWatches::RoundWatches(Coordinator* coordinator)
    : coordinator_(coordinator), thread_([this] { Loop(); }) {}

RoundWatches::~RoundWatches() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ISTHMUS_CHECK(watches_.empty());
    stopping_ = true;
  }
  coordinator_->history().Interrupt();
  thread_.join();
}

absl::Status RoundWatches::Add(const std::shared_ptr<RoundWatch>& watch) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!closed_with_.ok()) return closed_with_;
  if (watches_.size() >= kRoundWatchersMax) {
    return WithRetryAfterMs(
        WithReason(absl::ResourceExhaustedError(absl::StrCat(
                       "there are ", watches_.size(), " watches of rounds; the limit is ",
                       kRoundWatchersMax, ". End one, or ask with GetRun now and then")),
                   "ROUND_WATCHERS"),
        kRetryAfterMs);
  }
  watches_.insert(watch);
  coordinator_->history().AddWatcher();
  return absl::OkStatus();
}

void RoundWatches::Remove(const std::shared_ptr<RoundWatch>& watch) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (watches_.erase(watch) > 0) coordinator_->history().RemoveWatcher();
}

std::unordered_set<std::shared_ptr<RoundWatch>> RoundWatches::All() {
  std::lock_guard<std::mutex> lock(mutex_);
  return watches_;
}

WriteReactor* RoundWatches::Start(const v1::WatchRoundsRequest& request) {
  const absl::Status run = coordinator_->CheckRun(request.run());
  if (!run.ok()) return Refuse(run);
  RoundHistory& history = coordinator_->history();
  const auto watch = std::make_shared<RoundWatch>(this, &history);
  // From here on changes are recorded; what happens before StartWatch is part of its answer.
  if (const absl::Status added = Add(watch); !added.ok()) return Refuse(added);
  const RunFacts facts = coordinator_->Look();
  RoundHistory::Start start = history.StartWatch({facts.now_ms, facts.wall});
  start.current.set_waiting_for(facts.machine.Decide(facts.now_ms).sentence);
  if (start.current.has_round()) {
    *start.current.mutable_round() = ViewOfRound(facts, std::move(*start.current.mutable_round()));
  }
  watch->Start(std::move(start));
  return watch.get();
}

WriteReactor* RoundWatches::Refuse(const absl::Status& status) { return new RefusedWatch(status); }

void RoundWatches::CloseAll(const absl::Status& status) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    closed_with_ = status;
  }
  for (const auto& watch : All()) watch->Close(status);
}

void RoundWatches::Loop() {
  const RoundHistory& history = coordinator_->history();
  uint64_t seen = 0;
  while (true) {
    history.WaitPast(seen, kLookMs);
    seen = history.end_cursor();
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (stopping_) return;
    }
    for (const auto& watch : All()) watch->Pump();
  }
}

}  // namespace isthmus
