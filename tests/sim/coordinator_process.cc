#include "tests/sim/coordinator_process.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/limits.h"

namespace isthmus::sim {
namespace {

// How long merging and writing an update takes.
constexpr int64_t kCommitMsMax = 60;
constexpr int64_t kDownMsMax = 8000;

}  // namespace

CoordinatorProcess::CoordinatorProcess(Scene* scene)
    : scene_(scene),
      process_(&scene->world, "coordinator"),
      store_(std::make_shared<SimStore>(scene)) {}

void CoordinatorProcess::Start() {
  ISTHMUS_CHECK(!up());
  store_->Restart();
  CoordinatorOptions options;
  options.spec = scene_->plan.spec;
  options.store = store_;
  options.clock = &scene_->world;
  options.fold_threads = 1;
  options.ticks_by_itself = false;
  options.commits_by_itself = false;
  options.on_disk_failure = [](const absl::Status&) {};  // the store says that it was the end
  absl::StatusOr<std::unique_ptr<Coordinator>> started = Coordinator::Start(std::move(options));
  if (absl::IsResourceExhausted(started.status())) {
    return scene_->world.After(kRetryAfterMs, [this] {
      if (!up()) Start();
    });
  }
  if (!started.ok()) {
    return scene_->Fail(
        absl::StrCat("the coordinator does not start: ", started.status().ToString()));
  }
  host_ = *std::move(started);
  process_.Begin();
  commit_due_ = false;
  scene_->world.Trace("coordinator", absl::StrCat("starts from round ", store_->last_round()));
  Tick();
}

void CoordinatorProcess::Crash() {
  if (!up()) return;
  scene_->world.Trace("coordinator",
                      absl::StrCat("is killed, durable is round ", store_->last_round()));
  process_.End();
  sinks_.clear();
  pumps_.clear();
  for (const auto& action : std::exchange(at_crash_, {})) action();
  for (const auto& [number, down] : std::exchange(waiting_, {})) down();
  host_.reset();
}

void CoordinatorProcess::Kill() {
  Crash();
  scene_->world.After(scene_->world.random().Between(1, kDownMsMax), [this] {
    if (!up()) Start();
  });
}

void CoordinatorProcess::Receive(int64_t delay_ms, std::function<void(Coordinator&)> serve,
                                 std::function<void()> down) {
  scene_->world.After(delay_ms, [this, serve = std::move(serve), down = std::move(down)] {
    if (!up()) return down();
    const uint64_t number = ++last_message_;
    waiting_[number] = down;
    process_.After(0, [this, serve, number] {
      waiting_.erase(number);
      Run(serve);
    });
  });
}

uint64_t CoordinatorProcess::AddSink(std::unique_ptr<SubmissionSink> sink) {
  sinks_[++last_sink_] = std::move(sink);
  return last_sink_;
}

SubmissionSink* CoordinatorProcess::FindSink(uint64_t number) {
  const auto found = sinks_.find(number);
  return found == sinks_.end() ? nullptr : found->second.get();
}

void CoordinatorProcess::Run(const std::function<void(Coordinator&)>& action) {
  action(*host_);
  if (store_->crashed()) return Kill();
  pumps_.erase(std::remove_if(pumps_.begin(), pumps_.end(),
                              [](const std::function<bool()>& pump) { return !pump(); }),
               pumps_.end());
  if (!host_->has_commit() || commit_due_) return;
  commit_due_ = true;
  process_.After(scene_->world.random().Between(0, kCommitMsMax), [this] { Commit(); });
}

void CoordinatorProcess::Tick() {
  Run([](Coordinator& host) {
    host.Tick();
    (void)host.FinishSnapshot();  // a full disk: the next tick tries again
  });
  if (up()) process_.After(kTickMs, [this] { Tick(); });
}

void CoordinatorProcess::Commit() {
  commit_due_ = false;
  Run([this](Coordinator& host) {
    const absl::Status stored = host.CommitOne();
    if (stored.ok() || dying()) return;
    scene_->world.Trace("coordinator", absl::StrCat("cannot commit: ", stored.message()));
    commit_due_ = true;
    process_.After(kRetryAfterMs, [this] { Commit(); });
  });
}

}  // namespace isthmus::sim
