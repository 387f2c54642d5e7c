// Which of the instruction sets that the kernels are compiled for they use. Programs need none of
// this: the best one of the machine is chosen at the first call. Tests run all of them.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace isthmus {

// Names of the targets that are compiled and that this machine has, the best first. On x86
// the last one, SCALAR, is plain code without vector instructions.
std::vector<std::string> KernelTargets();

// The one in use.
std::string KernelTarget();

// From now on all kernels of this process use the target of this name, one of KernelTargets(); an
// empty name gives the choice back. Not while another thread is in a kernel.
void ForceKernelTarget(absl::string_view name);

}  // namespace isthmus
