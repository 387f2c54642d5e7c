// The residual of a node as the algorithm page has it, with nothing clever: what the method's own
// must equal, bit for bit, when it is fed the same history. And the sums of what went in and out.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "spec/grid.h"
#include "tests/history/history.h"

namespace isthmus::sim {

using Tensors = std::vector<std::vector<float>>;  // [tensor][element]
using Sums = std::vector<std::vector<double>>;    // the same

Tensors ZeroTensors(const Grid& grid);
Sums ZeroSums(const Grid& grid);
// sums <- sums + scale * values.
void Add(const Tensors& values, double scale, Sums* sums);

class PlainResidual {
 public:
  PlainResidual(std::shared_ptr<const Grid> grid, float beta, float alpha);

  // A contribution was made of this gradient.
  void Computed(uint64_t round, float eta, const Tensors& gradient, PiecesPtr pieces);
  void Settled(uint64_t round, bool included);

  const Tensors& values() const { return values_; }
  // Whether it is as it was at first: nothing is pending.
  bool settled() const { return pending_.empty(); }

  // Everything that has ever gone in, and gone out for good. With beta 1 the difference is what is
  // in the residual, and in what is pending.
  const Sums& inputs() const { return inputs_; }
  const Sums& outputs() const { return outputs_; }
  // Of what is pending.
  Sums Pending() const;

 private:
  struct Sent {
    Tensors values;  // decoded
    float decay = 1.0f;
  };

  std::shared_ptr<const Grid> grid_;
  float beta_;
  float alpha_;
  Tensors values_;
  std::map<uint64_t, Sent> pending_;
  Sums inputs_;
  Sums outputs_;
};

}  // namespace isthmus::sim
