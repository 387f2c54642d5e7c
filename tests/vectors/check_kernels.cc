// The groups that need kernels and grid alone: basis, chunk sides, codec, merge.
#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/status_macros.h"
#include "kernels/dct_tables.h"
#include "kernels/demo.h"
#include "tests/vectors/chunked.h"
#include "tests/vectors/demo_vectors.h"

namespace isthmus {
namespace {

// Tolerances stated with the recordings: all absolute, inputs of the codec are unit normal.
constexpr double kBasisTolerance = 1e-7;
constexpr double kCodecTolerance = 2e-6;

// One case of codec.json or multi_node_decode.json.
struct Case {
  std::string prefix;  // of its arrays
  std::vector<uint64_t> shape;
  uint32_t target = 0;
  nlohmann::json json;
};

absl::StatusOr<Case> ParseCase(const std::string& group, const nlohmann::json& json) {
  Case c;
  c.prefix = absl::StrCat(group, "/", json["name"].get<std::string>(), "/");
  c.json = json;
  ISTHMUS_ASSIGN_OR_RETURN(c.shape, ShapeOf(json.value("shape", nlohmann::json())));
  c.target = json.value("target_chunk", 0u);
  return c;
}

// Runs `check` on each case of GROUP.json.
std::vector<Comparison> CheckCases(
    const VectorFile& file, const std::string& group,
    const std::function<absl::Status(const Case&, Comparison*)>& check) {
  std::vector<Comparison> comparisons;
  const absl::StatusOr<nlohmann::json> json = RecordedJson(file, group + ".json");
  if (!json.ok() || json->empty()) {
    comparisons.emplace_back(group);
    if (json.ok()) {
      comparisons.back().Skip(absl::StrCat("there is no ", group, ".json or it is empty"));
    } else {
      comparisons.back().Expect(json.status());
    }
    return comparisons;
  }
  for (const nlohmann::json& entry : *json) {
    comparisons.emplace_back(absl::StrCat(group, "/", entry["name"].get<std::string>()));
    Comparison& comparison = comparisons.back();
    const absl::StatusOr<Case> c = ParseCase(group, entry);
    if (c.ok() && c->target > kChunkSideMax) {
      comparison.Skip(absl::StrCat("chunk side ", c->target, "; the limit is ", kChunkSideMax));
      continue;
    }
    comparison.Expect(c.ok() ? check(*c, &comparison) : c.status());
  }
  return comparisons;
}

// A selection may differ from the recorded one only where magnitudes are nearer to each other than
// the coefficients' own tolerance.
void CompareSelection(const std::string& what, absl::Span<const float> coefficients,
                      const Components& ours, const Components& recorded, Comparison* comparison) {
  const auto has = [](const Components& components, uint32_t at) {
    return std::binary_search(components.index.begin(), components.index.end(), at);
  };
  float least = HUGE_VALF;  // magnitude that was chosen
  for (const uint32_t at : recorded.index) least = std::min(least, std::fabs(coefficients[at]));
  for (const uint32_t at : recorded.index) {
    comparison->Expect(has(ours, at) || std::fabs(coefficients[at]) <= least + 2 * kCodecTolerance,
                       absl::StrCat(what, ": index ", at, " is recorded and was not chosen"));
  }
  for (size_t i = 0; i < ours.size(); ++i) {
    const uint32_t at = ours.index[i];
    comparison->Expect(
        has(recorded, at) || std::fabs(coefficients[at]) >= least - 2 * kCodecTolerance,
        absl::StrCat(what, ": index ", at, " was chosen and is not recorded"));
  }
}

// Through the coded form and back: the same components.
absl::Status ThroughContribution(const ChunkPlace& place, Components* components) {
  std::vector<char> coded;
  AppendContributionChunk(place.shape, place.k, *components, &coded);
  absl::string_view bytes(coded.data(), coded.size());
  return ReadContributionChunk(place.shape, place.k, &bytes, components);
}

absl::Status CheckCodecSelection(const VectorFile& file, const Case& c, uint32_t k,
                                 absl::Span<const float> coefficients, Comparison* comparison) {
  ISTHMUS_ASSIGN_OR_RETURN(const Grid grid,
                           MakeGrid({{"x", c.shape}}, PublishedCodec(c.target, k)));
  const std::vector<ChunkPlace> places = PlacesOf(grid, 0);
  const std::string prefix = absl::StrCat(c.prefix, "k", k, "/");
  ISTHMUS_ASSIGN_OR_RETURN(const std::vector<Components> recorded,
                           RecordedComponents(file, prefix + "idx", prefix + "val", places));
  ISTHMUS_ASSIGN_OR_RETURN(const auto recorded_decoded, file.Floats(prefix + "decoded"));
  std::vector<float> decoded(grid.elements());
  size_t first = 0;
  for (size_t i = 0; i < places.size(); ++i) {
    const ChunkPlace& place = places[i];
    const uint32_t elements = place.shape.elements();
    const auto own = coefficients.subspan(first, elements);
    Components chosen;
    SelectTopK(own, place.k, &chosen);
    ISTHMUS_RETURN_IF_ERROR(ThroughContribution(place, &chosen));
    CompareSelection(absl::StrCat(prefix, "idx of chunk ", i), own, chosen, recorded[i],
                     comparison);
    if (chosen.index == recorded[i].index) {
      comparison->Near(absl::StrCat(prefix, "val of chunk ", i), kCodecTolerance, chosen.value,
                       recorded[i].value);
    }
    std::vector<float> x(elements);
    DecodeComponents(place.shape, recorded[i], absl::MakeSpan(x));
    AddScaledChunk(place.shape, 1.0f, x, decoded.data() + place.first_element, place.stride);
    first += elements;
  }
  comparison->Near(prefix + "decoded", kCodecTolerance, decoded, recorded_decoded);
  return absl::OkStatus();
}

absl::Status CheckCodecCase(const VectorFile& file, const Case& c, Comparison* comparison) {
  ISTHMUS_ASSIGN_OR_RETURN(const Grid grid,
                           MakeGrid({{"x", c.shape}}, PublishedCodec(c.target, 1)));
  ISTHMUS_ASSIGN_OR_RETURN(const auto x, file.Floats(c.prefix + "x"));
  ISTHMUS_ASSIGN_OR_RETURN(const auto recorded, file.Floats(c.prefix + "coeff"));
  if (x.size() != grid.elements() || recorded.size() != grid.elements()) {
    return absl::InvalidArgumentError(absl::StrCat(c.prefix, "x has ", x.size(),
                                                   " elements, coeff ", recorded.size(),
                                                   ", its shape ", grid.elements()));
  }
  const std::vector<ChunkPlace> places = PlacesOf(grid, 0);
  ISTHMUS_ASSIGN_OR_RETURN(const auto sides, ShapeOf(c.json.value("chunk", nlohmann::json())));
  const ChunkShape shape = places[0].shape;
  comparison->Expect(!sides.empty() && sides.back() == shape.cols &&
                         sides[0] == (sides.size() == 1 ? shape.cols : shape.rows),
                     absl::StrCat("the chunk is ", shape.rows, " x ", shape.cols, ", recorded ",
                                  c.json.value("chunk", nlohmann::json()).dump()));
  std::vector<float> coefficients(grid.elements());
  size_t first = 0;
  for (const ChunkPlace& place : places) {
    const auto own = absl::MakeSpan(coefficients).subspan(first, place.shape.elements());
    EncodeChunk(place.shape, x.data() + place.first_element, place.stride, own);
    first += own.size();
  }
  comparison->Near(c.prefix + "coeff", kCodecTolerance, coefficients, recorded);
  ISTHMUS_ASSIGN_OR_RETURN(const auto ks, ShapeOf(c.json.value("ks", nlohmann::json())));
  for (const uint64_t k : ks) {
    ISTHMUS_RETURN_IF_ERROR(
        CheckCodecSelection(file, c, static_cast<uint32_t>(k), coefficients, comparison));
  }
  return absl::OkStatus();
}

absl::Status CheckMergeCase(const VectorFile& file, const Case& c, Comparison* comparison) {
  const auto codec = PublishedCodec(c.target, c.json.value("topk", 1u));
  ISTHMUS_ASSIGN_OR_RETURN(const Grid grid, MakeGrid({{"x", c.shape}}, codec));
  const std::vector<ChunkPlace> places = PlacesOf(grid, 0);
  std::vector<std::vector<Components>> nodes;
  for (uint32_t node = 0; node < c.json.value("nodes", 0u); ++node) {
    const std::string prefix = absl::StrCat(c.prefix, "node", node, "/");
    ISTHMUS_ASSIGN_OR_RETURN(auto components,
                             RecordedComponents(file, prefix + "idx", prefix + "val", places));
    nodes.push_back(std::move(components));
  }
  ISTHMUS_ASSIGN_OR_RETURN(const auto recorded_merged, file.Floats(c.prefix + "merged_coeff"));
  ISTHMUS_ASSIGN_OR_RETURN(const auto recorded_decoded, file.Floats(c.prefix + "decoded"));
  std::vector<float> merged;
  std::vector<float> decoded(grid.elements());
  for (size_t i = 0; i < places.size(); ++i) {
    const ChunkPlace& place = places[i];
    std::vector<const Components*> senders;
    for (std::vector<Components>& node : nodes) {
      ISTHMUS_RETURN_IF_ERROR(ThroughContribution(place, &node[i]));
      senders.push_back(&node[i]);
    }
    Components components;
    MergeBySenders(senders, place.shape.elements(), &components);
    std::vector<char> coded;
    AppendMergedChunk(place.shape, components, &coded);
    absl::string_view bytes(coded.data(), coded.size());
    ISTHMUS_RETURN_IF_ERROR(ReadMergedChunk(place.shape, &bytes, &components));
    const size_t first = merged.size();
    merged.resize(first + place.shape.elements());
    for (size_t n = 0; n < components.size(); ++n) {
      merged[first + components.index[n]] = components.value[n];
    }
    std::vector<float> x(place.shape.elements());
    DecodeComponents(place.shape, components, absl::MakeSpan(x));
    AddScaledChunk(place.shape, 1.0f, x, decoded.data() + place.first_element, place.stride);
  }
  comparison->Near(c.prefix + "merged_coeff", 0, merged, recorded_merged);
  comparison->Near(c.prefix + "decoded", kCodecTolerance, decoded, recorded_decoded);
  return absl::OkStatus();
}

}  // namespace

Comparison CheckDctBasis(const VectorFile& file) {
  Comparison comparison("dct_basis");
  for (const std::string& name : file.NamesUnder("dct_basis/")) {
    const std::string kind = name.substr(sizeof("dct_basis/") - 1, 4);
    uint32_t n;
    if ((kind != "fwd_" && kind != "inv_") ||
        !absl::SimpleAtoi(name.substr(sizeof("dct_basis/fwd_") - 1), &n) || n == 0) {
      comparison.Expect(false, absl::StrCat(name, " is not fwd_N or inv_N"));
    } else if (n <= kChunkSideMax) {
      const absl::StatusOr<absl::Span<const float>> recorded = file.Floats(name);
      comparison.Expect(recorded.status());
      if (!recorded.ok()) continue;
      const bool forward = kind == "fwd_";
      comparison.Near(name, kBasisTolerance, forward ? DctBasis(n) : DctBasisTransposed(n),
                      *recorded);
    }
  }
  return comparison;
}

Comparison CheckChunkSplit(const VectorFile& file) {
  Comparison comparison("chunk_split");
  for (const std::string& name : file.NamesUnder("chunk_split/")) {
    if (name == "chunk_split/big_n") continue;
    const bool big = absl::StartsWith(name, "chunk_split/big_target");
    const std::string prefix = big ? "chunk_split/big_target" : "chunk_split/target_";
    uint64_t target;
    if (!absl::StartsWith(name, prefix) || !absl::SimpleAtoi(name.substr(prefix.size()), &target) ||
        target == 0) {
      comparison.Expect(false, absl::StrCat(name, " is not target_T or big_targetT"));
      continue;
    }
    const auto recorded = file.Integers(name);
    const auto lengths = big ? file.Integers("chunk_split/big_n") : recorded;
    if (!recorded.ok() || !lengths.ok() || recorded->size() != lengths->size()) {
      comparison.Expect(false, absl::StrCat(name, " has other lengths than its table"));
      continue;
    }
    for (size_t i = 0; i < recorded->size(); ++i) {
      const uint64_t n = big ? static_cast<uint64_t>((*lengths)[i]) : i;
      const uint64_t side = n == 0 ? 0 : LargestDivisor(n, target);
      comparison.Expect(
          side == static_cast<uint64_t>((*recorded)[i]),
          absl::StrCat(name, ": the side for ", n, " is ", side, ", recorded ", (*recorded)[i]));
    }
  }
  return comparison;
}

std::vector<Comparison> CheckCodec(const VectorFile& file) {
  return CheckCases(file, "codec", [&file](const Case& c, Comparison* comparison) {
    return CheckCodecCase(file, c, comparison);
  });
}

std::vector<Comparison> CheckMultiNodeDecode(const VectorFile& file) {
  return CheckCases(file, "multi_node_decode", [&file](const Case& c, Comparison* comparison) {
    return CheckMergeCase(file, c, comparison);
  });
}

}  // namespace isthmus
