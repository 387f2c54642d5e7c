#include "transport/watch_reactor.h"

#include <utility>

#include "absl/status/statusor.h"
#include "transport/grpc_status.h"

namespace isthmus {
namespace {

using WriteReactor = grpc::ServerWriteReactor<v1::WatchUpdatesResponse>;

// A watch that the host refused.
class RefusedWatch final : public WriteReactor {
 public:
  explicit RefusedWatch(const absl::Status& status) { Finish(ToGrpcStatus(status)); }
  void OnDone() override { delete this; }
};

class WatchReactor final : public WriteReactor, public std::enable_shared_from_this<WatchReactor> {
 public:
  WatchReactor(RoundHost* host, OpenWatches* open_watches, const v1::WatchUpdatesRequest& request,
               std::shared_ptr<WatchQueue> queue)
      : host_(host), open_watches_(open_watches), request_(request), queue_(std::move(queue)) {}

  void Start() {
    self_ = shared_from_this();
    // The queue may outlive the call, so it does not keep the reactor.
    queue_->OnReady([weak = weak_from_this()] {
      if (const auto reactor = weak.lock()) reactor->Pump();
    });
    open_watches_->Add(queue_);
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
    open_watches_->Remove(queue_);
    host_->WatchEnded(request_, queue_);
    queue_->Close(absl::CancelledError("the watch has ended"));
    const auto self = std::move(self_);  // deletes this, unless a Pump is just returning
  }

 private:
  // Starts the next write, or finishes. At most one of them is under way at any time, and nothing
  // after Finish, so gRPC is called without the mutex: it may call back from inside.
  void Pump() {
    absl::Status end;
    const v1::WatchUpdatesResponse* event = nullptr;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (writing_ || finished_) return;
      if (cancelled_) {
        finished_ = true;
        end = absl::CancelledError("the watcher went away");
      } else {
        WatchQueue::Taken taken = queue_->Take();
        if (taken.closed) {
          finished_ = true;
          end = taken.status;
        } else if (taken.event != nullptr) {
          writing_ = true;
          current_ = std::move(taken.event);
          event = current_.get();
        } else {
          return;
        }
      }
    }
    if (event != nullptr) {
      StartWrite(event);
    } else {
      Finish(ToGrpcStatus(end));
    }
  }

  RoundHost* host_;
  OpenWatches* open_watches_;
  const v1::WatchUpdatesRequest request_;
  const std::shared_ptr<WatchQueue> queue_;
  std::shared_ptr<WatchReactor> self_;

  std::mutex mutex_;
  WatchEvent current_;  // kept while gRPC writes it
  bool writing_ = false;
  bool cancelled_ = false;
  bool finished_ = false;
};

}  // namespace

void OpenWatches::Add(const std::shared_ptr<WatchQueue>& queue) {
  absl::Status closed_with;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    queues_.insert(queue);
    closed_with = closed_with_;
  }
  if (!closed_with.ok()) queue->Close(closed_with);
}

void OpenWatches::Remove(const std::shared_ptr<WatchQueue>& queue) {
  std::lock_guard<std::mutex> lock(mutex_);
  queues_.erase(queue);
}

void OpenWatches::CloseAll(const absl::Status& status) {
  std::unordered_set<std::shared_ptr<WatchQueue>> queues;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    closed_with_ = status;
    queues = queues_;
  }
  for (const auto& queue : queues) queue->Close(status);
}

WriteReactor* StartWatch(RoundHost* host, OpenWatches* open_watches,
                         const v1::WatchUpdatesRequest& request) {
  absl::StatusOr<std::shared_ptr<WatchQueue>> queue = host->Watch(request);
  if (!queue.ok()) return new RefusedWatch(queue.status());
  const auto reactor =
      std::make_shared<WatchReactor>(host, open_watches, request, *std::move(queue));
  reactor->Start();
  return reactor.get();
}

}  // namespace isthmus
