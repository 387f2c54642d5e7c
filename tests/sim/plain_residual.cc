#include "tests/sim/plain_residual.h"

#include <utility>

#include "absl/types/span.h"
#include "base/check.h"
#include "kernels/demo.h"
#include "spec/piece.h"

namespace isthmus::sim {
namespace {

// What was sent, as values of the tensors.
Tensors Decode(const Grid& grid, const std::vector<std::string>& pieces) {
  Tensors values = ZeroTensors(grid);
  for (const std::string& bytes : pieces) {
    const absl::StatusOr<PieceView> piece = OpenPiece(grid, bytes);
    ISTHMUS_CHECK(piece.ok());
    const absl::Status status =
        ForEachChunk(grid, *piece, [&](uint64_t chunk, const Components& sent) {
          const ChunkPlace place = grid.Place(chunk);
          std::vector<float> dense(place.shape.elements());
          DecodeComponents(place.shape, sent, absl::MakeSpan(dense));
          std::vector<float>& tensor = values[place.tensor];
          for (uint32_t row = 0; row < place.shape.rows; ++row) {
            for (uint32_t col = 0; col < place.shape.cols; ++col) {
              tensor[place.first_element + row * place.stride + col] =
                  dense[row * place.shape.cols + col];
            }
          }
          return absl::OkStatus();
        });
    ISTHMUS_CHECK(status.ok());
  }
  return values;
}

}  // namespace

Tensors ZeroTensors(const Grid& grid) {
  Tensors tensors;
  for (uint32_t t = 0; t < grid.tensors(); ++t) tensors.emplace_back(grid.tensor_elements(t));
  return tensors;
}

Sums ZeroSums(const Grid& grid) {
  Sums sums;
  for (uint32_t t = 0; t < grid.tensors(); ++t) sums.emplace_back(grid.tensor_elements(t));
  return sums;
}

void Add(const Tensors& values, double scale, Sums* sums) {
  for (size_t t = 0; t < values.size(); ++t) {
    for (size_t e = 0; e < values[t].size(); ++e) {
      (*sums)[t][e] += scale * static_cast<double>(values[t][e]);
    }
  }
}

PlainResidual::PlainResidual(std::shared_ptr<const Grid> grid, float beta, float alpha)
    : grid_(std::move(grid)),
      beta_(beta),
      alpha_(alpha),
      values_(ZeroTensors(*grid_)),
      inputs_(ZeroSums(*grid_)),
      outputs_(ZeroSums(*grid_)) {}

void PlainResidual::Computed(uint64_t round, float eta, const Tensors& gradient, PiecesPtr pieces) {
  for (auto& [older, sent] : pending_) sent.decay *= beta_;
  Sent& sent = pending_[round];
  sent.values = Decode(*grid_, *pieces);
  for (size_t t = 0; t < values_.size(); ++t) {
    for (size_t e = 0; e < values_[t].size(); ++e) {
      float& d = values_[t][e];
      d = beta_ * d;
      d = d + eta * gradient[t][e];
      d = d + (-alpha_) * sent.values[t][e];
    }
  }
  Add(gradient, eta, &inputs_);
}

void PlainResidual::Settled(uint64_t round, bool included) {
  const auto found = pending_.find(round);
  if (found == pending_.end()) return;
  const Sent& sent = found->second;
  if (included) {
    Add(sent.values, alpha_, &outputs_);
  } else {
    const float scale = sent.decay * alpha_;
    for (size_t t = 0; t < values_.size(); ++t) {
      for (size_t e = 0; e < values_[t].size(); ++e) {
        values_[t][e] = values_[t][e] + scale * sent.values[t][e];
      }
    }
  }
  pending_.erase(found);
}

Sums PlainResidual::Pending() const {
  Sums sums = ZeroSums(*grid_);
  for (const auto& [round, sent] : pending_) Add(sent.values, alpha_, &sums);
  return sums;
}

}  // namespace isthmus::sim
