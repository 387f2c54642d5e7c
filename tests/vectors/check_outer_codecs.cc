// Families of recorded aggregation, number formats and error feedback.
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "kernels/aggregate.h"
#include "kernels/chunk_topk.h"
#include "kernels/feedback.h"
#include "kernels/number_bytes.h"
#include "kernels/number_format.h"
#include "kernels/outer.h"
#include "tests/vectors/outer_case.h"

namespace isthmus {
namespace {

std::vector<float> Restored(const NumberSettings& settings, const std::vector<char>& bytes,
                            size_t count, Comparison* comparison) {
  std::vector<float> values(count);
  absl::string_view rest(bytes.data(), bytes.size());
  comparison->Expect(ReadNumbers(settings, &rest, absl::MakeSpan(values)));
  return values;
}

std::vector<float> ThroughInt4(uint32_t group, uint32_t hadamard, absl::Span<const float> values,
                               Comparison* comparison) {
  NumberSettings settings;
  settings.format = NumberFormat::kInt4;
  settings.group = group;
  settings.hadamard = hadamard;
  std::vector<char> bytes;
  AppendNumbers(settings, values, {}, &bytes);
  return Restored(settings, bytes, values.size(), comparison);
}

}  // namespace

void CheckFeedbackCase(const OuterCase& c, Comparison* comparison) {
  const ChunkTopK selection{c.hyper().at("chunk"), c.hyper().at("k")};
  const float decay = static_cast<float>(c.hyper().at("decay").get<double>());
  OuterSettings settings = DefaultOuterSettings(OuterKind::kSgd);
  settings.lr = c.hyper().at("outer_lr");
  const auto round_numbers = MakeOuterRound(settings, {});
  comparison->Expect(round_numbers.status());
  const auto start = c.Floats("inputs/x0");
  const size_t nodes = c.Size("inputs/deltas", 1), size = start.size();
  std::vector<float> x(start.begin(), start.end());
  std::vector<std::vector<float>> residuals(nodes, std::vector<float>(size));
  for (size_t round = 0; round < c.Size("inputs/deltas", 0); ++round) {
    std::vector<float> g(size), sent(size);
    for (size_t node = 0; node < nodes; ++node) {
      const auto e = absl::MakeSpan(residuals[node]);
      AddToResidual(decay, c.Floats("inputs/deltas", {round, node}), e);
      std::vector<char> bytes;
      AppendChunkTopK(selection, e, &bytes);
      absl::string_view rest(bytes.data(), bytes.size());
      comparison->Expect(ReadChunkTopK(selection, &rest, absl::MakeSpan(sent)));
      TakeFromResidual(1.0f, sent, e);
      std::vector<int64_t> index;
      std::vector<float> value;
      for (size_t i = 0; i < size; ++i) {
        if (sent[i] == 0.0f) continue;
        index.push_back(static_cast<int64_t>(i));
        value.push_back(sent[i]);
      }
      c.Equal("f32/sent_index", {round, node}, index, comparison);
      c.Near("f32/sent_value", {round, node}, value, comparison);
      c.Near("f32/residual", {round, node}, e, comparison);
      Fold(node == 0, 1.0f, sent, absl::MakeSpan(g));
    }
    FinishFold({}, static_cast<uint32_t>(nodes), absl::MakeSpan(g));
    OuterStep(*round_numbers, 0, g, {absl::MakeSpan(x), {}, {}});
    c.Near("f32/x", {round}, x, comparison);
  }
}

void CheckQuantizationCase(const OuterCase& c, Comparison* comparison) {
  NumberSettings settings;
  settings.format = c.hyper().at("bits") == 8 ? NumberFormat::kInt8 : NumberFormat::kInt4;
  settings.group = c.hyper().at("block");
  const auto x = c.Floats("inputs/x");
  absl::Span<const float> draws;
  if (c.hyper().at("rounding") == "stochastic") draws = c.Floats("inputs/uniforms");
  std::vector<char> bytes;
  AppendNumbers(settings, x, draws, &bytes);
  std::vector<int64_t> codes, packed;
  std::vector<float> scales;
  for (size_t first = 0; first < x.size(); first += settings.group) {
    const NumberGroup group = GroupAt(settings, bytes.data(), first, x.size());
    scales.push_back(ScaleAt(group.bytes));
    for (size_t i = 0; i < group.count; ++i) {
      codes.push_back(CodeAt(settings.format, group.bytes + kScaleBytes, i));
    }
    for (size_t i = kScaleBytes; i < GroupBytes(settings, group.count); ++i) {
      packed.push_back(static_cast<uint8_t>(group.bytes[i]));
    }
  }
  c.Equal("f32/codes", {}, codes, comparison);
  c.Near("f32/scales", {}, scales, comparison);
  c.Near("f32/restored", {}, Restored(settings, bytes, x.size(), comparison), comparison);
  if (c.Has("f32/packed")) c.Equal("f32/packed", {}, packed, comparison);
}

void CheckHadamardCase(const OuterCase& c, Comparison* comparison) {
  const uint32_t n = c.hyper().at("size"), group = c.hyper().at("block");
  const auto x = c.Floats("inputs/x");
  std::vector<float> rotated(x.begin(), x.end());
  HadamardInPlace(n, absl::MakeSpan(rotated));
  c.Near("f32/rotated", {}, rotated, comparison);
  HadamardInPlace(n, absl::MakeSpan(rotated));
  c.Near("f32/back", {}, rotated, comparison);
  c.Near("f32/int4_plain", {}, ThroughInt4(group, 0, x, comparison), comparison);
  c.Near("f32/int4_rotated", {}, ThroughInt4(group, n, x, comparison), comparison);
}

void CheckAggregationCase(const OuterCase& c, Comparison* comparison) {
  const struct {
    const char* array;
    AggregateKind kind;
  } rules[] = {{"f32/mean", AggregateKind::kMean},
               {"f32/median", AggregateKind::kMedian},
               {"f32/trimmed", AggregateKind::kTrimmedMean},
               {"f32/norm_clipped", AggregateKind::kNormClippedMean}};
  std::vector<const float*> rows;
  std::vector<double> squares;
  for (size_t i = 0; i < c.Size("inputs/deltas", 0); ++i) {
    rows.push_back(c.Floats("inputs/deltas", {i}).data());
    squares.push_back(SquaresOf(c.Floats("inputs/deltas", {i})));
  }
  for (const auto& rule : rules) {
    AggregateSettings settings;
    settings.kind = rule.kind;
    settings.trim = c.hyper().at("trim");
    std::vector<float> factors, out(c.Size("inputs/deltas", 1));
    if (rule.kind == AggregateKind::kNormClippedMean) factors = ClipFactors(squares);
    AggregateBlock(settings, rows, factors, absl::MakeSpan(out));
    c.Near(rule.array, {}, out, comparison);
  }
}

}  // namespace isthmus
