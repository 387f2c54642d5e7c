// The process that the coordinator lives in: starts it from its store, drives it, kills it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "server/coordinator.h"
#include "tests/sim/scene.h"
#include "tests/sim/store.h"

namespace isthmus::sim {

class CoordinatorProcess {
 public:
  explicit CoordinatorProcess(Scene* scene);
  ~CoordinatorProcess() { Crash(); }

  void Start();
  // At once, with everything that is not in the store.
  void Crash();
  // The same, and it is started again a while later.
  void Kill();
  bool up() const { return process_.up(); }
  // In the course of dying: what it still says is heard by nobody.
  bool dying() const { return store_->crashed(); }
  Process& process() { return process_; }
  SimStore& store() { return *store_; }
  bool finished() const { return up() && host_->finished(); }
  // For people: why it waits.
  std::string WaitingFor() const { return up() ? host_->WaitingFor() : "the coordinator is down"; }

  // A message arrives after the delay; `down` runs when nobody is there to take it, or
  // the process ends before it does.
  void Receive(int64_t delay_ms, std::function<void(Coordinator&)> serve,
               std::function<void()> down);

  // Submissions on their way in. Gone with the process, or at the end of their call.
  uint64_t AddSink(std::unique_ptr<SubmissionSink> sink);
  SubmissionSink* FindSink(uint64_t number);
  void DropSink(uint64_t number) { sinks_.erase(number); }

  // Called after everything the coordinator did in this life, to carry away what it says, until it
  // returns false.
  void OnDone(std::function<bool()> pump) { pumps_.push_back(std::move(pump)); }
  // Called once, when this life ends.
  void OnCrash(std::function<void()> action) { at_crash_.push_back(std::move(action)); }

 private:
  void Run(const std::function<void(Coordinator&)>& action);
  void Tick();
  void Commit();

  Scene* const scene_;
  Process process_;
  std::shared_ptr<SimStore> store_;
  std::unique_ptr<Coordinator> host_;
  std::map<uint64_t, std::unique_ptr<SubmissionSink>> sinks_;
  uint64_t last_sink_ = 0;
  std::map<uint64_t, std::function<void()>> waiting_;  // messages that have come, by number
  uint64_t last_message_ = 0;
  std::vector<std::function<bool()>> pumps_;
  std::vector<std::function<void()>> at_crash_;
  bool commit_due_ = false;
};

}  // namespace isthmus::sim
