// Prints the logits of a checkpoint, for comparison with other programs:
//
//   print_logits CHECKPOINT TOKEN...
//
// One line a position: the logits of its next token, with all digits of a float.

#include <ATen/ops/empty.h>

#include <cstdio>
#include <cstdlib>

#include "worker/loaded_model.h"

namespace isthmus {
namespace {

int Main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: print_logits CHECKPOINT TOKEN...\n");
    return 2;
  }
  const auto model = LoadedModel::Load(argv[1]);
  if (!model.ok()) {
    std::fprintf(stderr, "%s\n", model.status().ToString().c_str());
    return 1;
  }
  Batch batch;
  batch.tokens = at::empty({1, argc - 2}, at::kLong);
  for (int i = 2; i < argc; ++i) {
    batch.tokens.mutable_data_ptr<int64_t>()[i - 2] = std::atoll(argv[i]);
  }
  const auto logits = (*model)->Forward(batch);
  if (!logits.ok()) {
    std::fprintf(stderr, "%s\n", logits.status().ToString().c_str());
    return 1;
  }
  const float* values = logits->const_data_ptr<float>();
  for (int64_t position = 0; position < logits->size(1); ++position) {
    for (int64_t token = 0; token < logits->size(2); ++token) std::printf("%.9g ", *values++);
    std::printf("\n");
  }
  return 0;
}

}  // namespace
}  // namespace isthmus

int main(int argc, char** argv) { return isthmus::Main(argc, argv); }
