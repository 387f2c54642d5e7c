#include "tests/vectors/demo_vectors.h"

#include <iterator>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/match.h"

namespace isthmus {
namespace {

void Append(std::vector<Comparison> from, std::vector<Comparison>* to) {
  to->insert(to->end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

// Files whose arrays are read by the checks of others.
bool BelongsToTrajectories(const std::string& name) { return absl::StartsWith(name, "trajector"); }

}  // namespace

std::vector<Comparison> CheckDemoVectors(const VectorFile& file) {
  std::vector<Comparison> all;
  std::set<std::string> names;
  for (const std::string& name : file.Children("")) {
    names.insert(name.substr(0, name.find(".json")));
  }
  bool trajectories = false;
  for (const std::string& name : names) {
    if (name == "dct_basis") {
      all.push_back(CheckDctBasis(file));
    } else if (name == "chunk_split") {
      all.push_back(CheckChunkSplit(file));
    } else if (name == "codec") {
      Append(CheckCodec(file), &all);
    } else if (name == "multi_node_decode") {
      Append(CheckMultiNodeDecode(file), &all);
    } else if (absl::StartsWith(name, "fsdp_hybrid_")) {
      all.push_back(CheckFsdpHybrid(file, name));
    } else if (BelongsToTrajectories(name)) {
      if (!trajectories) Append(CheckTrajectories(file), &all);
      trajectories = true;
    } else {
      all.emplace_back(name);
      all.back().Skip("no comparison is written for a file of this name");
    }
  }
  return all;
}

}  // namespace isthmus
