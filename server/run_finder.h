// Which coordinator a call is for: services ask by the name of the run.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "isthmus/v1/admin.pb.h"
#include "isthmus/v1/monitor.pb.h"
#include "server/coordinator.h"

namespace isthmus {

// Thread-safe. Coordinators stay for as long as it does.
class RunFinder {
 public:
  virtual ~RunFinder() = default;
  // Empty: the only one there is. NOT_FOUND: names those that are here. UNAVAILABLE: one that is
  // not served, and why.
  virtual absl::StatusOr<Coordinator*> Find(const std::string& run) const = 0;
  // Ascending by name of the run.
  virtual std::vector<Coordinator*> All() const = 0;
  // Runs whose folder could not be gone on with, ascending by name; `waiting_for` says why.
  virtual std::vector<v1::Run> NotServed() const { return {}; }
  virtual absl::StatusOr<v1::CreateRunResponse> CreateRun(const v1::CreateRunRequest& request) = 0;
  virtual absl::StatusOr<v1::ForkRunResponse> ForkRun(const v1::ForkRunRequest& request) = 0;
};

// One run that somebody else keeps, and no other.
class OneRun final : public RunFinder {
 public:
  explicit OneRun(Coordinator* coordinator) : coordinator_(coordinator) {}

  absl::StatusOr<Coordinator*> Find(const std::string& run) const override {
    if (const absl::Status known = coordinator_->CheckRun(run); !known.ok()) return known;
    return coordinator_;
  }
  std::vector<Coordinator*> All() const override { return {coordinator_}; }
  absl::StatusOr<v1::CreateRunResponse> CreateRun(const v1::CreateRunRequest&) override {
    return absl::UnimplementedError("this server has one run for good");
  }
  absl::StatusOr<v1::ForkRunResponse> ForkRun(const v1::ForkRunRequest&) override {
    return absl::UnimplementedError("this server has one run for good");
  }

 private:
  Coordinator* const coordinator_;
};

}  // namespace isthmus
