#include "tests/sim/plan.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "spec/run_spec.h"
#include "tests/sim/world.h"

namespace isthmus::sim {
namespace {

v1::Manifest SmallManifest() {
  v1::Manifest manifest;
  const std::vector<std::pair<std::string, std::vector<uint64_t>>> tensors = {
      {"wte", {9, 6}}, {"bias", {11}}, {"scale", {}}};
  for (const auto& [name, shape] : tensors) {
    v1::TensorSpec* tensor = manifest.add_tensors();
    tensor->set_name(name);
    tensor->set_dtype(v1::DTYPE_FLOAT32);
    for (const uint64_t size : shape) tensor->add_shape(size);
  }
  return manifest;
}

template <typename T>
T Pick(Random* random, const std::vector<T>& values) {
  return values[static_cast<size_t>(random->Between(0, static_cast<int64_t>(values.size()) - 1))];
}

void PickTiming(Random* random, v1::RunSpec* spec) {
  v1::TimingSpec* timing = spec->mutable_timing();
  timing->set_lease_ms(static_cast<uint32_t>(random->Between(3000, 15000)));
  timing->set_heartbeat_ms(timing->lease_ms() / static_cast<uint32_t>(random->Between(4, 8)));
  if (spec->quorum() == 0) return;
  timing->set_deadline_ms(static_cast<uint32_t>(random->Between(1500, 20000)));
  timing->set_grace_ms(static_cast<uint32_t>(random->Between(100, 5000)));
}

void PickCodec(Random* random, bool accounting, v1::RunSpec* spec) {
  v1::CodecSpec* codec = spec->mutable_codec();
  codec->set_chunk_side(4);
  codec->set_matrix_density(Pick<double>(random, {0.1, 0.3, 0.7, 1.0}));
  codec->set_vector_density(Pick<double>(random, {0.25, 0.5, 1.0}));
  const float below_one = std::nextafter(1.0f, 0.0f);
  codec->set_beta(accounting ? below_one
                             : Pick<float>(random, {0.0f, 0.5f, 0.9f, 0.999f, below_one}));
  codec->set_alpha(Pick<float>(random, {1.0f, 1.0f, 0.5f}));
  codec->set_sign(!accounting && random->Chance(500));
}

v1::RunSpec PickSpec(Random* random, bool accounting) {
  v1::RunSpec spec;
  spec.set_run("sim");
  spec.set_seed(1);
  const int64_t nodes = Pick<int64_t>(random, {1, 2, 2, 3, 3, 3, 4, 5});
  // Names whose order is not that of the spec.
  for (int64_t i = 0; i < nodes; ++i) spec.add_nodes()->set_name(absl::StrCat("n", (i * 3) % 7));
  if (nodes > 1 && random->Chance(600)) {
    spec.set_quorum(static_cast<uint32_t>(random->Between(1, nodes - 1)));
  }
  spec.set_steps(static_cast<uint64_t>(random->Between(3, 14)));
  spec.set_deterministic(spec.quorum() == 0 && !accounting && random->Chance(500));
  spec.mutable_model()->set_layers(1);
  spec.mutable_model()->set_heads(1);
  spec.mutable_model()->set_width(8);
  spec.mutable_model()->set_context(8);
  spec.mutable_data()->set_sequences_per_node(8);
  spec.mutable_optimizer()->set_lr(0.05f);
  spec.mutable_optimizer()->set_warmup_steps(1);
  PickTiming(random, &spec);
  PickCodec(random, accounting, &spec);
  ISTHMUS_CHECK(CompleteRunSpec(&spec).ok());
  return spec;
}

void PickFaults(Random* random, Plan* plan) {
  // A third of the worlds have one trouble only, so that it is seen by itself.
  const bool one_only = random->Chance(333);
  const int on = one_only ? 0 : 550;
  std::vector<bool*> kinds = {&plan->crash_coordinator,
                              &plan->pause_coordinator,
                              &plan->store_faults,
                              &plan->crash_agent,
                              &plan->crash_trainer,
                              &plan->pause_node,
                              &plan->partition,
                              &plan->leave,
                              &plan->drain,
                              &plan->evict,
                              &plan->pause_run};
  for (bool* kind : kinds) *kind = random->Chance(on);
  *Pick<bool*>(random, kinds) = true;
  // In deterministic mode who contributes is part of the result.
  if (plan->spec.deterministic()) plan->drain = plan->evict = false;
  plan->faults_end_ms = random->Between(5000, 60000);
  plan->fault_every_ms = random->Between(300, 6000);
  if (!one_only) {
    plan->loss_permille = Pick<int>(random, {0, 10, 50, 150, 300});
    plan->replay_permille = Pick<int>(random, {0, 50, 200, 500});
    // Only where a node that is refused for it is not missed, and nothing depends on who was.
    const bool may_forge = plan->spec.quorum() == 0 && !plan->spec.deterministic();
    plan->forge_permille = may_forge ? Pick<int>(random, {0, 300}) : 0;
    plan->abstain_permille = Pick<int>(random, {0, 0, 50, 200});
    plan->spoil_permille = Pick<int>(random, {0, 0, 50, 200});
    plan->all_abstain_permille = Pick<int>(random, {0, 0, 100});
  }
}

// Of half of the runs updates are applied late.
void PickOverlap(uint64_t seed, v1::RunSpec* spec) {
  Random random(seed ^ 0x1a7e);
  spec->set_overlap(Pick<uint32_t>(&random, {0, 0, 1, 2}));
  if (spec->overlap() > 0) spec->set_look(Pick<double>(&random, {0, 1}));
  ISTHMUS_CHECK(CompleteRunSpec(spec).ok());
}

// Numbers in fewer bits, and updates in any of their forms. Without SIGN1, of which the plain
// residual does not see what was taken.
void PickWire(uint64_t seed, v1::RunSpec* spec) {
  Random random(seed ^ 0xb175);
  v1::CodecSpec* codec = spec->mutable_codec();
  codec->mutable_numbers()->set_format(Pick<v1::NumberFormat>(
      &random, {v1::NUMBER_FORMAT_F32, v1::NUMBER_FORMAT_F32, v1::NUMBER_FORMAT_BF16,
                v1::NUMBER_FORMAT_F16, v1::NUMBER_FORMAT_INT8, v1::NUMBER_FORMAT_INT4}));
  codec->set_update_form(
      Pick<v1::UpdateForm>(&random, {v1::UPDATE_FORM_UNSPECIFIED, v1::UPDATE_FORM_COMPONENTS,
                                     v1::UPDATE_FORM_CONTRIBUTIONS, v1::UPDATE_FORM_DENSE}));
  if (codec->sign() && random.Chance(300)) codec->set_update_form(v1::UPDATE_FORM_SIGN_PLANE);
}

// A part of the runs, with rounds enough after the last flip that the node is found out and healed.
// In deterministic mode a flip would make another history; sums are compared without.
void PickFlips(uint64_t seed, bool accounting, Plan* plan) {
  Random random(seed ^ 0xf11b);
  v1::RunSpec& spec = plan->spec;
  if (!random.Chance(400) || accounting || spec.deterministic() || spec.nodes_size() < 2) return;
  spec.set_quorum(0);
  spec.mutable_timing()->set_deadline_ms(0);
  spec.set_check_every(static_cast<uint32_t>(random.Between(1, 3)));
  plan->flip_until = spec.steps();
  plan->flip_permille = Pick<int>(&random, {30, 100});
  spec.set_steps(spec.steps() + 12);
}

}  // namespace

Plan MakePlan(uint64_t seed, const PlanOptions& options) {
  // A generator of its own, so that a plan without faults is of the same run.
  Random random(seed ^ 0x5eedu);
  Plan plan;
  plan.seed = seed;
  plan.bug = options.bug;
  plan.manifest = SmallManifest();
  plan.spec = PickSpec(&random, options.accounting);
  plan.piece_bytes = static_cast<size_t>(random.Between(40, 200));
  plan.delay_max_ms = Pick<int>(&random, {2, 20, 200, 1000});
  plan.compute_max_ms = random.Between(50, 2500);
  plan.checkpoint_every = static_cast<uint64_t>(random.Between(0, 4));
  if (!plan.spec.deterministic() && random.Chance(500)) {
    plan.keep_rounds = static_cast<uint64_t>(random.Between(1, 4));
    plan.spec.mutable_snapshot()->set_every_rounds(static_cast<uint64_t>(random.Between(1, 4)));
  }
  PickFaults(&random, &plan);
  PickWire(seed, &plan.spec);
  PickOverlap(seed, &plan.spec);
  if (options.faults) {
    PickFlips(seed, options.accounting, &plan);
    return plan;
  }
  plan.loss_permille = plan.replay_permille = plan.forge_permille = 0;
  plan.faults_end_ms = 0;
  return plan;
}

Plan MakeToyPlan(uint64_t seed, bool faults) {
  Plan plan;
  plan.seed = seed;
  plan.manifest = SmallManifest();
  plan.piece_bytes = 100;
  v1::RunSpec& spec = plan.spec;
  spec.set_run("toy");
  for (const char* name : {"fra", "iad", "sin"}) spec.add_nodes()->set_name(name);
  spec.set_quorum(2);
  spec.set_steps(150);
  spec.mutable_model()->set_layers(1);
  spec.mutable_model()->set_heads(1);
  spec.mutable_model()->set_width(8);
  spec.mutable_model()->set_context(8);
  spec.mutable_data()->set_sequences_per_node(8);
  spec.mutable_optimizer()->set_lr(0.05f);
  spec.mutable_optimizer()->set_warmup_steps(5);
  spec.mutable_codec()->set_chunk_side(4);
  spec.mutable_codec()->set_matrix_density(0.25);
  spec.mutable_codec()->set_beta(0.9f);
  spec.mutable_timing()->set_lease_ms(3000);
  spec.mutable_timing()->set_heartbeat_ms(700);
  spec.mutable_timing()->set_deadline_ms(4000);
  spec.mutable_timing()->set_grace_ms(300);
  ISTHMUS_CHECK(CompleteRunSpec(&spec).ok());
  plan.delay_max_ms = 20;
  plan.compute_max_ms = 200;
  if (!faults) return plan;
  plan.faults_end_ms = 60000;
  plan.fault_every_ms = 1000;
  plan.crash_agent = plan.pause_coordinator = plan.partition = true;
  return plan;
}

int64_t Plan::limit_ms() const {
  const int64_t quiet =
      60000 + 3 * int64_t{spec.timing().lease_ms()} + 3 * int64_t{spec.timing().deadline_ms()};
  const int64_t round = compute_max_ms + spec.timing().grace_ms() + 20 * delay_max_ms + 1000;
  return faults_end_ms + quiet + static_cast<int64_t>(spec.steps()) * round;
}

Plan::Fate Plan::FateOf(size_t node, uint64_t round) const {
  Random of_round(seed * 31 + round);
  if (of_round.Chance(all_abstain_permille)) return Fate::kAbstains;
  // With a quorum below all, those who have nothing must leave enough others: a node that has
  // answered is not asked again, and the round would wait for ever, as it says.
  const size_t nodes = static_cast<size_t>(spec.nodes_size());
  const size_t may_fail = spec.quorum() == 0 ? nodes : nodes - EffectiveQuorum(spec);
  const size_t first = static_cast<size_t>(of_round.Between(0, static_cast<int64_t>(nodes) - 1));
  const size_t place = (node + nodes - first) % nodes;
  if (place >= may_fail) return Fate::kGood;
  Random of_node(seed * 37 + round * 1009 + node);
  if (of_node.Chance(abstain_permille)) return Fate::kAbstains;
  if (of_node.Chance(spoil_permille)) return Fate::kSpoilt;
  return Fate::kGood;
}

bool Plan::FlipsAfter(size_t node, uint64_t round) const {
  return round <= flip_until && Random(seed * 43 + round * 1019 + node).Chance(flip_permille);
}

std::string Describe(const Plan& plan) {
  std::string line = absl::StrCat(
      plan.spec.nodes_size(), " nodes, quorum ", plan.spec.quorum(), ", ", plan.spec.steps(),
      " steps, overlap ", plan.spec.overlap(), plan.replays() ? ", deterministic" : "", ", lease ",
      plan.spec.timing().lease_ms(), " ms, deadline ", plan.spec.timing().deadline_ms(),
      " ms, grace ", plan.spec.timing().grace_ms(), " ms, loss ", plan.loss_permille,
      "/1000, replay ", plan.replay_permille, "/1000, delay to ", plan.delay_max_ms,
      " ms, faults to ", plan.faults_end_ms, " ms, about every ", plan.fault_every_ms, " ms:");
  const std::vector<std::pair<const char*, bool>> kinds = {
      {"coordinator crashes", plan.crash_coordinator},
      {"coordinator pauses", plan.pause_coordinator},
      {"store", plan.store_faults},
      {"agent crashes", plan.crash_agent},
      {"trainer crashes", plan.crash_trainer},
      {"node pauses", plan.pause_node},
      {"partitions", plan.partition},
      {"leaves", plan.leave},
      {"drains", plan.drain},
      {"evictions", plan.evict},
      {"paused runs", plan.pause_run}};
  if (plan.keep_rounds != 0) {
    absl::StrAppend(&line, " keeps ", plan.keep_rounds, " rounds,");
  }
  if (plan.flip_permille != 0) {
    absl::StrAppend(&line, " flipped bits, compared every ", plan.spec.check_every(), " rounds,");
  }
  for (const auto& [name, on] : kinds) {
    if (on) absl::StrAppend(&line, " ", name, ",");
  }
  return line;
}

}  // namespace isthmus::sim
