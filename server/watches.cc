// WatchUpdates: what a watcher is sent, and when.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "server/coordinator.h"
#include "transport/errors.h"

namespace isthmus {
namespace {

// Updates of the past are read in portions of at least one, and no more than this.
constexpr uint64_t kPastBytes = kPieceBytesMax;

absl::Status Malformed(absl::string_view reason, const std::string& text) {
  return WithReason(absl::InvalidArgumentError(text), reason);
}

}  // namespace

absl::StatusOr<std::shared_ptr<WatchQueue>> Coordinator::Watch(
    const v1::WatchUpdatesRequest& request) {
  const DeliverAfter deliver(this);
  const auto queue = std::make_shared<WatchQueue>(kWatchQueueEventsMax, kWatchLagBytesMax);
  ChunkRanges watched;
  std::unique_lock<std::mutex> lock(mutex_);
  ISTHMUS_RETURN_IF_ERROR(CheckWatchLocked(request, &watched));
  // Without the lock: it may come from the disk. Also tells whether what it lacks is kept and
  // sound.
  lock.unlock();
  ISTHMUS_ASSIGN_OR_RETURN(std::vector<StoredUpdatePtr> first,
                           store_->ReadAfter(request.last_round(), kPastBytes));
  lock.lock();
  // The rest of what was checked does not change with time.
  ISTHMUS_RETURN_IF_ERROR(CheckCallerLocked(request.run(), request.node(), request.incarnation()));
  NodeState& node = nodes_[request.node()];
  CloseWatchLocked(
      &node, WithReason(absl::AbortedError(absl::StrCat("a newer watch of node '", request.node(),
                                                        "' replaced this one")),
                        "WATCH_REPLACED"));
  // The node has no watch in this step: what the step would send is part of what follows.
  StepLocked(NodeAcknowledged{request.node(), request.last_round()});
  queue->Push(StartEventLocked(request.node()));
  for (const v1::StoredRevision& revision : revisions_.After(request.last_round())) {
    queue->Push(RevisedEvent(revision));
  }
  queue->PushPast(PastLocked(request.last_round(), std::move(first), watched));
  for (const auto& [round, aggregator] : aggregators_) {
    const Standing standing = machine_.StandingIn(request.node(), round);
    const bool member = standing == Standing::kOutstanding || standing == Standing::kComplete;
    if (!machine_.IsOpen(round) || !member) continue;
    queue->Push(OpenedEventLocked(request.node(), round));
  }
  if (machine_.finished()) {
    auto finished = std::make_shared<v1::WatchUpdatesResponse>();
    finished->mutable_finished()->set_round(machine_.committed_round());
    queue->Push(std::move(finished));
  }
  node.watch = queue;
  node.watched = std::move(watched);
  return queue;
}

void Coordinator::WatchEnded(const v1::WatchUpdatesRequest& request,
                             const std::shared_ptr<WatchQueue>& queue) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto node = nodes_.find(request.node());
  if (node == nodes_.end()) return;
  if (node->second.watch == queue) node->second.watch = nullptr;
  if (!queue->fell_behind()) return;
  ++watches_dropped_;
  LogWarning("a watcher fell behind and was dropped; it watches again",
             {{"node", request.node()}, {"run", spec_.run()}});
}

absl::Status Coordinator::CheckWatchLocked(const v1::WatchUpdatesRequest& request,
                                           ChunkRanges* ranges) {
  ISTHMUS_RETURN_IF_ERROR(CheckCallerLocked(request.run(), request.node(), request.incarnation()));
  if (request.role() != v1::ROLE_NODE) {
    return Malformed("WRONG_ROLE", absl::StrCat("role is ", v1::Role_Name(request.role()),
                                                "; a coordinator serves ROLE_NODE, ranks watch "
                                                "at their node's agent"));
  }
  ISTHMUS_RETURN_IF_ERROR(
      CheckHistoryLocked(request.node(), request.last_round(), request.last_update_sha256()));
  if (request.stripes() > 1 || request.stripe() != 0) {
    return Malformed("WRONG_STRIPE",
                     absl::StrCat("stripe is ", request.stripe(), " of ", request.stripes(),
                                  "; this version has 0 of 0 or 0 of 1"));
  }
  uint64_t next = 0;
  for (const v1::ChunkRange& range : request.ranges()) {
    if (range.begin() < next || range.begin() >= range.end() ||
        range.end() > model_->grid->chunks()) {
      return Malformed(
          "WRONG_RANGES",
          absl::StrCat("ranges has [", range.begin(), ", ", range.end(), ") after ", next,
                       "; ranges are not empty, ascending and disjoint, and "
                       "the model has ",
                       model_->grid->chunks(), " chunks"));
    }
    next = range.end();
    ranges->Add(range.begin(), range.end());
  }
  return absl::OkStatus();
}

// What was committed after `last_round` until now, of which `first` was read already; one that is
// stored but not yet published comes with its PublishRound. The queue may outlive the coordinator,
// and does not keep its store open.
WatchQueue::Past Coordinator::PastLocked(uint64_t last_round, std::vector<StoredUpdatePtr> first,
                                         const ChunkRanges& watched) const {
  return [weak = std::weak_ptr<const Store>(store_), watched, first = std::move(first),
          next = last_round + 1,
          last = machine_.committed_round()]() mutable -> absl::StatusOr<std::vector<WatchEvent>> {
    std::vector<WatchEvent> events;
    if (next > last) return events;
    const std::shared_ptr<const Store> store = weak.lock();
    if (store == nullptr) {
      return WithReason(absl::UnavailableError("the coordinator is shutting down"),
                        kReasonShuttingDown);
    }
    absl::StatusOr<std::vector<StoredUpdatePtr>> updates = std::exchange(first, {});
    if (updates->empty()) updates = store->ReadAfter(next - 1, kPastBytes);
    if (absl::IsOutOfRange(updates.status())) {
      // A join tells what there is instead.
      return WithReason(
          absl::ResourceExhaustedError(absl::StrCat(
              "this watcher read too slowly: ", updates.status().message(), ". Join again")),
          "WATCHER_BEHIND");
    }
    if (!updates.ok()) return updates.status();
    for (const StoredUpdatePtr& update : *updates) {
      if (next > last) break;
      AppendUpdate(*update, watched, &events);
      ++next;
    }
    return events;
  };
}

WatchEvent Coordinator::StartEventLocked(const std::string& node) const {
  auto event = std::make_shared<v1::WatchUpdatesResponse>();
  v1::WatchStart* start = event->mutable_start();
  start->set_committed_round(machine_.committed_round());
  for (const auto& [round, aggregator] : aggregators_) {
    const Contribution* held = aggregator->Find(node);
    if (held == nullptr || !machine_.IsOpen(round)) continue;
    v1::HeldContribution* contribution = start->add_held();
    contribution->set_round(round);
    contribution->set_attempt(held->attempt);
    contribution->set_complete(held->complete);
    contribution->set_digest(held->digest);
    for (const auto& [begin, end] : held->ranges.list()) {
      v1::ChunkRange* range = contribution->add_ranges();
      range->set_begin(begin);
      range->set_end(end);
    }
  }
  return event;
}

WatchEvent Coordinator::OpenedEventLocked(const std::string& node, uint64_t round) const {
  auto event = std::make_shared<v1::WatchUpdatesResponse>();
  v1::RoundOpened* opened = event->mutable_opened();
  opened->set_round(round);
  opened->set_base_round(machine_.BaseOf(round));
  opened->set_step(revisions_.StepAfter(round));
  opened->set_spec_revision(revisions_.RevisionOf(round));
  opened->set_lr_bits(LearningRateBits(round));
  opened->set_snapshot(snapshot_plan_.DutyOf(node, round));
  const int64_t left_ms = machine_.CloseLeftMs(NowMs(), round);
  opened->set_deadline_ms(left_ms < 0 ? 0 : static_cast<uint32_t>(std::max<int64_t>(1, left_ms)));
  return event;
}

void Coordinator::SendOpenedLocked(const std::string& node, uint64_t round) {
  const NodeState& state = nodes_[node];
  if (state.watch == nullptr) return;
  deliveries_.push_back({state.watch, {OpenedEventLocked(node, round)}, absl::nullopt});
}

void Coordinator::AppendUpdate(const StoredUpdate& update, const ChunkRanges& watched,
                               std::vector<WatchEvent>* events) {
  const size_t at = events->size();
  events->push_back(nullptr);
  for (size_t i = 0; i < update.pieces.size(); ++i) {
    const auto& [begin, end] = update.ranges[i];
    if (watched.list().empty() || watched.Overlaps(begin, end)) {
      events->push_back(update.pieces[i]);
    }
  }
  auto record = std::make_shared<v1::WatchUpdatesResponse>();
  *record->mutable_update() = update.record;
  record->set_pieces_following(static_cast<uint32_t>(events->size() - at - 1));
  (*events)[at] = std::move(record);
}

void Coordinator::SendUpdateLocked(const StoredUpdatePtr& update) {
  for (const auto& [name, node] : nodes_) {
    if (node.watch == nullptr) continue;
    Delivery delivery{node.watch, {}, absl::nullopt};
    AppendUpdate(*update, node.watched, &delivery.events);
    deliveries_.push_back(std::move(delivery));
  }
}

// Pushing may run the transport's code, which may call back here, so it happens without the mutex.
// One thread delivers at a time, in order; the others leave theirs to it.
void Coordinator::Deliver() {
  std::unique_lock<std::mutex> lock(mutex_);
  if (delivering_) return;
  delivering_ = true;
  while (!deliveries_.empty()) {
    Delivery delivery = std::move(deliveries_.front());
    deliveries_.pop_front();
    lock.unlock();
    for (WatchEvent& event : delivery.events) delivery.queue->Push(std::move(event));
    if (delivery.close.has_value()) delivery.queue->Close(*std::move(delivery.close));
    lock.lock();
  }
  delivering_ = false;
}

void Coordinator::CloseWatchLocked(NodeState* node, absl::Status status) {
  if (node->watch == nullptr) return;
  deliveries_.push_back({std::exchange(node->watch, nullptr), {}, std::move(status)});
}

}  // namespace isthmus
