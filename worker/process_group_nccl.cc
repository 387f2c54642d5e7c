#include "worker/process_group_nccl.h"

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "worker/c10d_work.h"
#include "worker/torch_status.h"

namespace isthmus {
namespace {

class NcclGroup final : public ProcessGroup {
 public:
  NcclGroup(std::unique_ptr<ProcessGroup> host, c10::intrusive_ptr<c10d::ProcessGroupNCCL> backend)
      : host_(std::move(host)), backend_(std::move(backend)) {}
  int rank() const override { return host_->rank(); }
  int ranks() const override { return host_->ranks(); }

  std::unique_ptr<PendingCollective> AllGather(at::Tensor part, at::Tensor full) override {
    if (!full.is_cuda()) return host_->AllGather(std::move(part), std::move(full));
    return StartWork([&] { return backend_->_allgather_base(full, part); });
  }
  std::unique_ptr<PendingCollective> ReduceScatterMean(at::Tensor full, at::Tensor part) override {
    if (!full.is_cuda()) return host_->ReduceScatterMean(std::move(full), std::move(part));
    c10d::ReduceScatterOptions options;
    options.reduceOp = c10d::ReduceOp::AVG;
    return StartWork([&] { return backend_->_reduce_scatter_base(part, full, options); });
  }
  absl::Status AllReduceSum(absl::Span<double> values) override {
    return host_->AllReduceSum(values);
  }
  absl::Status AllReduceMax(absl::Span<double> values) override {
    return host_->AllReduceMax(values);
  }
  absl::Status JoinBytes(std::string* bytes) override { return host_->JoinBytes(bytes); }
  absl::Status Broadcast(std::string* bytes) override { return host_->Broadcast(bytes); }
  absl::Status Barrier() override { return host_->Barrier(); }

 private:
  std::unique_ptr<ProcessGroup> host_;
  c10::intrusive_ptr<c10d::ProcessGroupNCCL> backend_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ProcessGroup>> WithNccl(std::unique_ptr<ProcessGroup> host,
                                                       c10d::Store& store, int device) {
  // Waiting blocks and reports a lost rank as an exception here; by default NCCL's watchdog would
  // end the process without a word of ours.
  setenv("TORCH_NCCL_BLOCKING_WAIT", "1", /*overwrite=*/0);
  try {
    auto options = c10d::ProcessGroupNCCL::Options::create();
    options->timeout = std::chrono::milliseconds(kCollectiveTimeoutMs);
    auto shared = c10::intrusive_ptr<c10d::Store>::reclaim_copy(&store);
    auto keys = c10::make_intrusive<c10d::PrefixStore>("nccl", std::move(shared));
    auto backend = c10::make_intrusive<c10d::ProcessGroupNCCL>(std::move(keys), host->rank(),
                                                               host->ranks(), std::move(options));
    // The communicator is made now, so that a GPU that cannot take part is told at the start.
    backend->eagerConnectSingleDevice(at::Device(at::kCUDA, static_cast<at::DeviceIndex>(device)));
    return std::unique_ptr<ProcessGroup>(
        std::make_unique<NcclGroup>(std::move(host), std::move(backend)));
  } catch (const std::exception& error) {
    return absl::UnavailableError(absl::StrCat(
        "rank ", host->rank(), " of ", host->ranks(), " could not start NCCL on GPU ", device, " (",
        TorchMessage(error), "); see the other ranks' output, and NCCL_DEBUG=INFO for NCCL's own"));
  }
}

}  // namespace isthmus
