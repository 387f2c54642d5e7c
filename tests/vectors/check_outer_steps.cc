// Families of recorded outer steps: through the aggregation and the steps as a coordinator makes
// them.
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/aggregate.h"
#include "kernels/number_format.h"
#include "kernels/outer.h"
#include "tests/vectors/outer_case.h"

namespace isthmus {
namespace {

template <class T>
T ValueOf(absl::StatusOr<T> result) {
  if (!result.ok()) throw std::runtime_error(std::string(result.status().message()));
  return *std::move(result);
}

// The aggregate of the contributors' rows of one round.
std::vector<float> Aggregated(const OuterCase& c, const char* array, size_t round,
                              const AggregateSettings& settings = {},
                              const std::vector<float>& factors = {}) {
  std::vector<const float*> rows;
  for (size_t i = 0; i < c.Size(array, 1); ++i) rows.push_back(c.Floats(array, {round, i}).data());
  std::vector<float> g(c.Size(array, 2));
  AggregateBlock(settings, rows, factors, absl::MakeSpan(g));
  return g;
}

struct Arrays {
  std::vector<float> x, first, second;

  explicit Arrays(absl::Span<const float> start)
      : x(start.begin(), start.end()), first(x.size()), second(x.size()) {}
  OuterState State() { return {absl::MakeSpan(x), absl::MakeSpan(first), absl::MakeSpan(second)}; }
};

OuterSettings SignSettings(const nlohmann::json& hyper) {
  OuterSettings settings = DefaultOuterSettings(OuterKind::kSignMomentum);
  settings.beta1 = hyper.at("beta1");
  settings.beta2 = hyper.at("beta2");
  settings.eta = hyper.at("eta");
  settings.weight_decay = hyper.at("weight_decay");
  settings.divide_by_gamma = hyper.value("divide_by_gamma", true);
  if (!hyper.contains("operator")) return settings;
  settings.sign =
      hyper["operator"] == "two_point" ? SignKind::kRandomTwoPoint : SignKind::kRandomThreePoint;
  if (hyper.at("bound_mode") == "linf") {
    settings.bound_kind = BoundKind::kLargest;
  } else {
    settings.bound = hyper.at("bound");
  }
  return settings;
}

OuterSettings SgdSettings(const nlohmann::json& hyper) {
  OuterSettings settings;
  settings.kind = hyper.at("nesterov").get<bool>() ? OuterKind::kNesterov
                  : hyper.at("momentum") == 0.0    ? OuterKind::kSgd
                                                   : OuterKind::kMomentum;
  settings.lr = hyper.at("lr");
  settings.momentum = hyper.at("momentum");
  settings.weight_decay = hyper.at("weight_decay");
  return settings;
}

// What sign_momentum takes the sign of: the momentum of a rule whose betas are beta1.
std::vector<float> SignedOf(OuterSettings settings, double gamma, absl::Span<const float> g,
                            const std::vector<float>& m) {
  settings.beta2 = settings.beta1;
  settings.sign = SignKind::kExact;
  Arrays arrays(m);
  arrays.first = m;
  OuterStep(ValueOf(MakeOuterRound(settings, {gamma, {}, {}})), 0, g, arrays.State());
  return arrays.first;
}

}  // namespace

void CheckSignMomentumCase(const OuterCase& c, Comparison* comparison) {
  const OuterSettings settings = SignSettings(c.hyper());
  const auto gammas = c.Floats("inputs/gammas");
  Arrays arrays(c.Floats("inputs/x0"));
  for (size_t round = 0; round < gammas.size(); ++round) {
    const std::vector<float> g = Aggregated(c, "inputs/deltas", round);
    OuterRound numbers = ValueOf(MakeOuterRound(settings, {gammas[round], {}, {}}));
    if (NeedsLargest(settings)) numbers.bound = OuterLargest(numbers, g, arrays.first);
    c.Near("f32/c", {round}, SignedOf(settings, gammas[round], g, arrays.first), comparison);
    absl::Span<const float> draws;
    if (settings.sign != SignKind::kExact) draws = c.Floats("inputs/uniforms", {round});
    OuterStepWithDraws(numbers, g, draws, arrays.State());
    c.Near("f32/x", {round}, arrays.x, comparison);
    c.Near("f32/m", {round}, arrays.first, comparison);
  }
}

void CheckSgdCase(const OuterCase& c, Comparison* comparison) {
  const OuterSettings settings = SgdSettings(c.hyper());
  AggregateSettings aggregate;
  std::vector<float> factors;
  if (c.hyper().contains("tokens")) {
    aggregate.kind = AggregateKind::kWeightedMean;
    std::vector<double> weights;
    for (size_t i = 0; i < c.hyper()["tokens"].size(); ++i) {
      const ContributionSize size{c.hyper()["tokens"][i], c.hyper().at("steps")[i]};
      weights.push_back(
          ValueOf(ContributionWeight(WeightKind::kTokensTimesTokensPerStep, size, size)));
    }
    factors = ValueOf(MeanFactors(weights, 1.0));
  }
  Arrays arrays(c.Floats("inputs/x0"));
  for (size_t round = 0; round < c.Size("inputs/deltas", 0); ++round) {
    const std::vector<float> g = Aggregated(c, "inputs/deltas", round, aggregate, factors);
    OuterStep(ValueOf(MakeOuterRound(settings, {})), 0, g, arrays.State());
    c.Near("f32/x", {round}, arrays.x, comparison);
    if (settings.momentum != 0.0) c.Near("f32/buf", {round}, arrays.first, comparison);
  }
}

void CheckSlowMoCase(const OuterCase& c, Comparison* comparison) {
  OuterSettings settings = DefaultOuterSettings(OuterKind::kSlowMo);
  settings.alpha = c.hyper().at("alpha");
  settings.beta = c.hyper().at("beta");
  const auto gammas = c.Floats("inputs/gammas");
  Arrays arrays(c.Floats("inputs/x0"));
  for (size_t round = 0; round < gammas.size(); ++round) {
    OuterStep(ValueOf(MakeOuterRound(settings, {gammas[round], {}, {}})), 0,
              Aggregated(c, "inputs/deltas", round), arrays.State());
    c.Near("f32/x", {round}, arrays.x, comparison);
    c.Near("f32/u", {round}, arrays.first, comparison);
  }
}

void CheckAdamWCase(const OuterCase& c, Comparison* comparison) {
  OuterSettings settings = DefaultOuterSettings(OuterKind::kAdamW);
  settings.lr = c.hyper().at("lr");
  settings.beta1 = c.hyper().at("beta1");
  settings.beta2 = c.hyper().at("beta2");
  settings.eps = c.hyper().at("eps");
  settings.weight_decay = c.hyper().at("weight_decay");
  OuterPowers powers;
  Arrays arrays(c.Floats("inputs/x0"));
  for (size_t round = 0; round < c.Size("inputs/deltas", 0); ++round) {
    powers = NextOuterPowers(settings, powers);
    OuterStep(ValueOf(MakeOuterRound(settings, {0.0, powers, {}})), 0,
              Aggregated(c, "inputs/deltas", round), arrays.State());
    c.Near("f32/x", {round}, arrays.x, comparison);
    c.Near("f32/m", {round}, arrays.first, comparison);
    c.Near("f32/v", {round}, arrays.second, comparison);
  }
}

// Nodes' directions, through their bits, to the vote and the step.
void CheckLionCase(const OuterCase& c, Comparison* comparison) {
  const LionRule rule = MakeLionRule(c.hyper().at("beta1"), c.hyper().at("beta2"));
  OuterSettings settings = DefaultOuterSettings(OuterKind::kLion);
  settings.lr = c.hyper().at("lr");
  settings.weight_decay = c.hyper().at("weight_decay");
  AggregateSettings aggregate;
  if (c.hyper().at("rule") == "majority") aggregate.kind = AggregateKind::kMajority;
  NumberSettings bits;
  bits.format = NumberFormat::kSign1;
  const size_t nodes = c.Size("inputs/grads", 1), size = c.Size("inputs/grads", 2);
  std::vector<std::vector<float>> momenta(nodes, std::vector<float>(size));
  Arrays arrays(c.Floats("inputs/x0"));
  for (size_t round = 0; round < c.Size("inputs/grads", 0); ++round) {
    std::vector<float> update(size), direction(size), votes(size);
    for (size_t node = 0; node < nodes; ++node) {
      LionDirection(rule, c.Floats("inputs/grads", {round, node}), absl::MakeSpan(momenta[node]),
                    absl::MakeSpan(direction));
      c.Near("f32/c", {round, node}, direction, comparison);
      std::vector<char> bytes;
      AppendNumbers(bits, direction, {}, &bytes);
      std::vector<int64_t> payload;
      for (const char byte : bytes) payload.push_back(static_cast<uint8_t>(byte));
      c.Equal("f32/payload", {round, node}, payload, comparison);
      absl::string_view rest(bytes.data(), bytes.size());
      comparison->Expect(ReadNumbers(bits, &rest, absl::MakeSpan(votes)));
      Fold(node == 0, 1.0f, votes, absl::MakeSpan(update));
    }
    FinishFold(aggregate, static_cast<uint32_t>(nodes), absl::MakeSpan(update));
    c.Near("f32/update", {round}, update, comparison);
    OuterStep(ValueOf(MakeOuterRound(settings, {})), 0, update, arrays.State());
    c.Near("f32/x", {round}, arrays.x, comparison);
  }
  for (size_t node = 0; node < nodes; ++node) {
    c.Near("f32/m_last", {node}, momenta[node], comparison);
  }
}

}  // namespace isthmus
