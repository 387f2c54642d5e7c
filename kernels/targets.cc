#include "kernels/targets.h"

#include "base/check.h"
#include "hwy/highway.h"

namespace isthmus {
namespace {

// All that are compiled and supported, whatever is forced: asked once, before anything is forced.
const std::vector<int64_t>& Supported() {
  static const auto* const targets = new std::vector<int64_t>(hwy::SupportedAndGeneratedTargets());
  return *targets;
}

}  // namespace

std::vector<std::string> KernelTargets() {
  std::vector<std::string> names;
  for (const int64_t target : Supported()) names.push_back(hwy::TargetName(target));
  return names;
}

std::string KernelTarget() {
  // A lower bit is a better target.
  const std::vector<int64_t> usable = hwy::SupportedAndGeneratedTargets();
  ISTHMUS_CHECK(!usable.empty());
  return hwy::TargetName(usable[0]);
}

void ForceKernelTarget(absl::string_view name) {
  int64_t forced = 0;
  for (const int64_t target : Supported()) {
    if (name == hwy::TargetName(target)) forced = target;
  }
  ISTHMUS_CHECK(name.empty() || forced != 0);
  hwy::SetSupportedTargetsForTest(forced);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace isthmus
