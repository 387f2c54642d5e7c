#include <c10/cuda/CUDAFunctions.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker/accelerator.h"
#include "worker/process_group_nccl.h"
#include "worker/torch_status.h"

namespace isthmus {

absl::StatusOr<Accelerator> ChooseAccelerator(const std::string& wanted, int local_rank) {
  if (!wanted.empty() && wanted != "cpu" && wanted != "cuda") {
    return absl::InvalidArgumentError(
        absl::StrCat("--device is '", wanted, "'; it is cpu or cuda"));
  }
  const int gpus = c10::cuda::device_count();  // 0 without a driver
  if (wanted == "cpu" || (wanted.empty() && gpus == 0)) return Accelerator();
  if (local_rank >= gpus) {
    return absl::FailedPreconditionError(absl::StrCat(
        "local rank ", local_rank, " takes GPU ", local_rank, ", and this process sees ", gpus,
        " of them; start one rank a GPU, set LOCAL_RANK, or use --device=cpu"));
  }
  const auto device = static_cast<at::DeviceIndex>(local_rank);
  ISTHMUS_RETURN_IF_ERROR(CatchTorch("choosing the GPU", [device] {
    c10::cuda::set_device(device);
    return absl::OkStatus();
  }));
  Accelerator accelerator;
  accelerator.device = at::Device(at::kCUDA, device);
  accelerator.upgrade = [local_rank](std::unique_ptr<ProcessGroup> host, c10d::Store& store) {
    return WithNccl(std::move(host), store, local_rank);
  };
  return accelerator;
}

}  // namespace isthmus
