#include "worker/methods/method.h"

#include <utility>

#include "base/status_macros.h"
#include "worker/methods/demo_shard.h"
#include "worker/methods/gradient_shard.h"

namespace isthmus {

absl::StatusOr<std::unique_ptr<Method>> MakeMethod(
    const MethodOptions& options, const std::vector<TensorPart<const float>>& parts) {
  if (options.codec.kind() == v1::CODEC_KIND_DEMO) {
    ISTHMUS_ASSIGN_OR_RETURN(DemoShard shard, DemoShard::Make(options, parts));
    return std::unique_ptr<Method>(new DemoShard(std::move(shard)));
  }
  ISTHMUS_ASSIGN_OR_RETURN(GradientShard shard, GradientShard::Make(options, parts));
  return std::unique_ptr<Method>(new GradientShard(std::move(shard)));
}

}  // namespace isthmus
