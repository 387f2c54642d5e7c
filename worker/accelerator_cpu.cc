#include "absl/strings/str_cat.h"
#include "worker/accelerator.h"

namespace isthmus {

absl::StatusOr<Accelerator> ChooseAccelerator(const std::string& wanted, int) {
  if (wanted.empty() || wanted == "cpu") return Accelerator();
  if (wanted == "cuda") {
    return absl::FailedPreconditionError(
        "--device is cuda, and this trainer is built for the CPU; ./dev build --config=cuda builds "
        "the one for GPUs, trainer_cuda");
  }
  return absl::InvalidArgumentError(absl::StrCat("--device is '", wanted, "'; it is cpu or cuda"));
}

}  // namespace isthmus
