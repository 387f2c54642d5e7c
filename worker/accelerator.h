// What a trainer computes on: the CPU, or one GPU. Two files implement this, and a program links
// one of them: accelerator_cpu.cc (//worker:trainer), or accelerator_cuda.cc
// (//worker:trainer_cuda).
//
// Shards, codec and hashes stay on the host either way: full tensors, forward and backward live on
// the device, and the own part of parameters and gradients is copied over once a gather.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/process_group.h"

namespace isthmus {

struct Accelerator {
  at::Device device = at::kCPU;
  // For ProcessGroupOptions::upgrade; null: Gloo does.
  GroupUpgrade upgrade;
};

// `wanted` is "cpu", "cuda", or empty for the best there is. `local_rank`: number of this process
// among those of its machine, which takes the GPU of this number.
// INVALID_ARGUMENT: another word. FAILED_PRECONDITION: a GPU is wanted and there is none for this
// rank; says how many there are.
absl::StatusOr<Accelerator> ChooseAccelerator(const std::string& wanted, int local_rank);

}  // namespace isthmus
