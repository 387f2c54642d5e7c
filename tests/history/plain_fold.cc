#include "tests/history/plain_fold.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <utility>

#include "absl/types/span.h"
#include "base/status_macros.h"
#include "kernels/demo.h"
#include "spec/piece.h"

namespace isthmus {
namespace {

// Sends each value that the pieces have to visit(chunk, position, value).
template <typename Visit>
absl::Status ForEachValue(const Grid& grid, const std::vector<std::string>& pieces, Visit visit) {
  for (const std::string& bytes : pieces) {
    ISTHMUS_ASSIGN_OR_RETURN(const PieceView piece, OpenPiece(grid, bytes));
    ISTHMUS_RETURN_IF_ERROR(
        ForEachChunk(grid, piece, [&](uint64_t chunk, const Components& components) {
          const bool all = components.index.empty();  // of layouts that have every value
          for (uint32_t i = 0; i < components.value.size(); ++i) {
            visit(chunk, all ? i : components.index[i], components.value[i]);
          }
          return absl::OkStatus();
        }));
  }
  return absl::OkStatus();
}

DenseChunks Zeros(const Grid& grid) {
  DenseChunks chunks(grid.chunks());
  for (uint64_t c = 0; c < grid.chunks(); ++c) chunks[c].resize(grid.Place(c).shape.elements());
  return chunks;
}

}  // namespace

absl::StatusOr<DenseChunks> ReadDense(const Grid& grid, const std::vector<std::string>& pieces) {
  DenseChunks chunks = Zeros(grid);
  ISTHMUS_RETURN_IF_ERROR(ForEachValue(
      grid, pieces, [&](uint64_t chunk, uint32_t at, float value) { chunks[chunk][at] = value; }));
  return chunks;
}

absl::StatusOr<DenseChunks> PlainFold(const Grid& grid, const std::vector<PiecesPtr>& nodes) {
  DenseChunks sum = Zeros(grid), senders = Zeros(grid);
  for (const PiecesPtr& pieces : nodes) {
    ISTHMUS_RETURN_IF_ERROR(
        ForEachValue(grid, *pieces, [&](uint64_t chunk, uint32_t at, float value) {
          float& total = sum[chunk][at];
          total = senders[chunk][at] == 0.0f ? value : total + value;
          senders[chunk][at] += 1.0f;
        }));
  }
  constexpr float kLargest = std::numeric_limits<float>::max();
  for (uint64_t chunk = 0; chunk < sum.size(); ++chunk) {
    for (size_t at = 0; at < sum[chunk].size(); ++at) {
      const float count = senders[chunk][at];
      if (count == 0.0f) continue;
      const float mean = sum[chunk][at] / count;
      sum[chunk][at] = std::max(-kLargest, std::min(kLargest, mean));
    }
  }
  return sum;
}

void TakeSigns(const Grid& grid, DenseChunks* chunks) {
  for (uint64_t chunk = 0; chunk < chunks->size(); ++chunk) {
    std::vector<float>& values = (*chunks)[chunk];
    Components merged;
    for (uint32_t at = 0; at < values.size(); ++at) {
      if (values[at] == 0.0f) continue;
      merged.index.push_back(at);
      merged.value.push_back(values[at]);
    }
    DecodeComponents(grid.Place(chunk).shape, merged, absl::MakeSpan(values));
    SignInPlace(absl::MakeSpan(values));
  }
}

bool SameBits(const DenseChunks& a, const DenseChunks& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].size() != b[i].size()) return false;
    if (std::memcmp(a[i].data(), b[i].data(), a[i].size() * sizeof(float)) != 0) return false;
  }
  return true;
}

}  // namespace isthmus
