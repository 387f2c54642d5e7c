// Recorded arrays by name, read from the file that tools/convert_vectors.py writes (its first lines
// state the form).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace isthmus {

struct VectorArray {
  std::vector<uint64_t> shape;
  // One of the two is filled: f4 into `floats`; i4, i8 and u1 into `integers`.
  std::vector<float> floats;
  std::vector<int64_t> integers;
};

class VectorFile {
 public:
  // NOT_FOUND: no such file; DATA_LOSS: not in the form, naming the line or array.
  static absl::StatusOr<VectorFile> Read(const std::string& path);

  // nullptr if there is none of that name.
  const VectorArray* Find(const std::string& name) const;
  VectorArray* FindMutable(const std::string& name);
  // NOT_FOUND naming the array; INVALID_ARGUMENT if it holds integers.
  absl::StatusOr<absl::Span<const float>> Floats(const std::string& name) const;
  // The same for integers.
  absl::StatusOr<absl::Span<const int64_t>> Integers(const std::string& name) const;
  // The text of NAME.json; empty if there is none.
  std::string Text(const std::string& name) const;

  // All names that begin with `prefix`, ascending.
  std::vector<std::string> NamesUnder(const std::string& prefix) const;
  // What stands between `prefix` and the next '/' (or the end) in those names, once each,
  // ascending: the files for "", the arrays and groups of a file for "codec/".
  std::vector<std::string> Children(const std::string& prefix) const;

 private:
  std::map<std::string, VectorArray> arrays_;
};

}  // namespace isthmus
