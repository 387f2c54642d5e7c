// Simulated time, chance and what was seen: one seed decides everything that happens in it.
//
//   World world(seed, /*verbose=*/false);
//   world.After(100, [&] { ... });
//   while (world.RunOne()) {}
//   world.trace_hash();   // the same for the same seed
//
// Single-threaded.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/clock.h"

namespace isthmus::sim {

// SplitMix64 (Steele, Lea, Flood 2014): the same numbers with any compiler and library.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  // In [low, high].
  int64_t Between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(Next() % static_cast<uint64_t>(high - low + 1));
  }
  bool Chance(int permille) { return Between(0, 999) < permille; }
  // In [-1, 1).
  float Value() { return static_cast<float>(Next() >> 40) / (1u << 23) - 1.0f; }

 private:
  uint64_t state_;
};

class World final : public Clock {
 public:
  World(uint64_t seed, bool verbose) : random_(seed), verbose_(verbose) {}

  int64_t NowMs() const override { return now_ms_; }
  Random& random() { return random_; }

  // Runs `action` when so much time has passed. Of two for the same moment the one that was asked
  // for first runs first.
  void After(int64_t delay_ms, std::function<void()> action);
  // Runs the next action. False: there is none.
  bool RunOne();

  // A line of what happened. All lines go into the hash; they are printed when verbose.
  void Trace(absl::string_view who, absl::string_view what);
  uint64_t trace_hash() const { return hash_; }
  uint64_t trace_lines() const { return lines_; }

 private:
  struct Action {
    int64_t time_ms;
    uint64_t number;
    std::function<void()> run;
    bool operator<(const Action& other) const {  // the greatest is the next one
      return time_ms != other.time_ms ? time_ms > other.time_ms : number > other.number;
    }
  };

  Random random_;
  const bool verbose_;
  int64_t now_ms_ = 1000;
  uint64_t last_number_ = 0;
  std::priority_queue<Action> actions_;
  uint64_t hash_ = 0xcbf29ce484222325u;
  uint64_t lines_ = 0;
};

// What can stop, stand still and start again. Actions of a process are those of its present life;
// what was meant for an earlier one is lost with it.
class Process {
 public:
  Process(World* world, std::string name) : world_(world), name_(std::move(name)) {}

  const std::string& name() const { return name_; }
  bool up() const { return up_; }
  uint64_t life() const { return life_; }
  void Begin() {
    up_ = true;
    ++life_;
  }
  void End();
  // Nothing is done for so long; what comes meanwhile waits, in order.
  void Pause(int64_t ms) { paused_until_ms_ = world_->NowMs() + ms; }
  bool paused() const { return world_->NowMs() < paused_until_ms_; }

  // Runs `action` after the delay, or after the pause; not at all when this life is over.
  void After(int64_t delay_ms, std::function<void()> action);

 private:
  void Arrive(std::function<void()> action);
  void Flush();

  World* const world_;
  const std::string name_;
  bool up_ = false;
  uint64_t life_ = 0;
  int64_t paused_until_ms_ = 0;
  std::deque<std::function<void()>> waiting_;  // for the end of the pause
};

}  // namespace isthmus::sim
