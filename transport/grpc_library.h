// gRPC's library, started once and never ended. When the last of its objects goes, it would wait
// for a thread of its own that helps blocked writes, and which looks up every 10 s only: a process
// that was told to stop in the middle of a large transfer would end that much later.
#pragma once

#include "grpc/grpc.h"

namespace isthmus {

inline void KeepGrpcForLife() {
  static const bool kept = [] {
    grpc_init();
    return true;
  }();
  (void)kept;
}

}  // namespace isthmus
