#include "tests/sim/world.h"

#include <cstdio>
#include <utility>

namespace isthmus::sim {
namespace {

constexpr uint64_t kFnvPrime = 0x100000001b3u;

}  // namespace

void World::After(int64_t delay_ms, std::function<void()> action) {
  actions_.push({now_ms_ + delay_ms, ++last_number_, std::move(action)});
}

bool World::RunOne() {
  if (actions_.empty()) return false;
  // The queue gives only const access to what it is about to drop.
  std::function<void()> run = std::move(const_cast<Action&>(actions_.top()).run);
  now_ms_ = actions_.top().time_ms;
  actions_.pop();
  run();
  return true;
}

void World::Trace(absl::string_view who, absl::string_view what) {
  const auto mix = [this](absl::string_view text) {
    for (const char c : text) hash_ = (hash_ ^ static_cast<unsigned char>(c)) * kFnvPrime;
    hash_ = (hash_ ^ 0xffu) * kFnvPrime;
  };
  hash_ = (hash_ ^ static_cast<uint64_t>(now_ms_)) * kFnvPrime;
  mix(who);
  mix(what);
  ++lines_;
  if (!verbose_) return;
  std::printf("%8.3f  %-12.*s %.*s\n", static_cast<double>(now_ms_) / 1000.0,
              static_cast<int>(who.size()), who.data(), static_cast<int>(what.size()), what.data());
}

void Process::End() {
  up_ = false;
  paused_until_ms_ = 0;
  waiting_.clear();
}

void Process::After(int64_t delay_ms, std::function<void()> action) {
  world_->After(delay_ms, [this, life = life_, action = std::move(action)]() mutable {
    if (up_ && life == life_) Arrive(std::move(action));
  });
}

void Process::Arrive(std::function<void()> action) {
  if (!paused() && waiting_.empty()) return action();
  waiting_.push_back(std::move(action));
  if (waiting_.size() > 1) return;  // the first one asked for the flush
  const int64_t left_ms = paused_until_ms_ - world_->NowMs();
  world_->After(left_ms > 0 ? left_ms : 0, [this, life = life_] {
    if (up_ && life == life_) Flush();
  });
}

void Process::Flush() {
  std::deque<std::function<void()>> due = std::exchange(waiting_, {});
  const uint64_t life = life_;
  while (!due.empty() && up_ && life == life_) {
    std::function<void()> action = std::move(due.front());
    due.pop_front();
    Arrive(std::move(action));
  }
}

}  // namespace isthmus::sim
