// c10d's work as a PendingCollective, with its exceptions as a Status. Shared by the backends.
#pragma once

#include <memory>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "worker/process_group.h"
#include "worker/torch_status.h"

namespace isthmus {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

inline absl::Status LostRank(const std::exception& error) {
  return absl::UnavailableError(
      absl::StrCat("lost another rank of this node (", TorchMessage(error),
                   "); see that rank's output, then start all ranks of the node again"));
}

// What has ended already.
class Finished final : public PendingCollective {
 public:
  explicit Finished(absl::Status status) : status_(std::move(status)) {}
  absl::Status Wait() override { return status_; }

 private:
  absl::Status status_;
};

class PendingWork final : public PendingCollective {
 public:
  explicit PendingWork(WorkPtr work) : work_(std::move(work)) {}
  // The backend still reads and writes the tensors until the work has ended.
  ~PendingWork() override { Wait().IgnoreError(); }
  absl::Status Wait() override {
    if (work_ == nullptr) return absl::OkStatus();
    try {
      work_->wait();
    } catch (const std::exception& error) {
      work_ = nullptr;
      return LostRank(error);
    }
    work_ = nullptr;
    return absl::OkStatus();
  }

 private:
  WorkPtr work_;
};

// Calls `start`, which returns c10d's work.
template <typename Start>
std::unique_ptr<PendingCollective> StartWork(Start&& start) {
  try {
    return std::make_unique<PendingWork>(start());
  } catch (const std::exception& error) {
    return std::make_unique<Finished>(LostRank(error));
  }
}

}  // namespace isthmus
