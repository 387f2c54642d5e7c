#include "tests/sim/simulation.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/sim/coordinator_process.h"
#include "tests/sim/node.h"
#include "tests/sim/scene.h"

namespace isthmus::sim {
namespace {

constexpr int64_t kDownMsMax = 8000;
constexpr int64_t kDiskFullMsMax = 5000;
constexpr int64_t kOperatorRetryMs = 500;
constexpr int64_t kKeepUpMs = 1000;
constexpr int64_t kLookAtStatesMs = 2000;

class Simulation {
 public:
  Simulation(const Plan& plan, bool verbose);
  // The coordinator ends first: it tells the nodes that their connections are gone.
  ~Simulation() { coordinator_.Crash(); }
  Verdict Run();

 private:
  void ScheduleFault();
  void Fault();
  void FaultOfCoordinator(int64_t kind);
  void FaultOfNode(Node* node);
  void Heal();
  void KeepUp();
  // An operator's word about a node, or about the run (an empty name), said until it is heard or
  // another one follows it.
  enum class Order { kDrain, kEvict, kAdmit, kPause, kResume };
  static Order Opposite(Order order) {
    return order == Order::kPause ? Order::kResume : Order::kAdmit;
  }
  void SayForAWhile(Order order, const std::string& node);
  void Say(Order order, const std::string& node);
  void Deliver(Order order, const std::string& node, uint64_t number);
  absl::Status Carry(Coordinator& host, Order order, const std::string& node);
  absl::Status CarryPause(Coordinator& host, Order order);
  bool Finished() const;
  bool AllDone() const;
  bool AllEqual() const;
  // An operator who looks now and then whether nodes' states differ without a majority.
  void LookAtStates();
  std::string Where() const;
  void CheckEnd();
  double SumError() const;
  double Loss() const;
  // A time about as long as a lease, sometimes much longer than one.
  int64_t Long();

  Scene scene_;
  World& world_;
  CoordinatorProcess coordinator_;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::map<std::string, uint64_t> last_order_;  // of each node
  uint64_t orders_ = 0;                         // said
  uint64_t orders_heard_ = 0;
  uint64_t choices_ = 0, healed_ = 0;
};

Simulation::Simulation(const Plan& plan, bool verbose)
    : scene_(plan, verbose), world_(scene_.world), coordinator_(&scene_) {
  coordinator_.Start();
  for (int i = 0; i < plan.spec.nodes_size(); ++i) {
    nodes_.push_back(std::make_unique<Node>(&scene_, static_cast<size_t>(i), &coordinator_));
    Node* const node = nodes_.back().get();
    node->StartTrainer();
    world_.After(world_.random().Between(0, 2000), [node] {
      if (node->trainer_up() && !node->agent_up()) node->StartAgent();
    });
  }
  world_.After(std::max<int64_t>(0, plan.faults_end_ms - world_.NowMs()), [this] { Heal(); });
  ScheduleFault();
  if (plan.flip_permille != 0) LookAtStates();
}

int64_t Simulation::Long() {
  const int64_t lease_ms = scene_.plan.spec.timing().lease_ms();
  return world_.random().Between(lease_ms / 10, 2 * lease_ms);
}

void Simulation::ScheduleFault() {
  if (scene_.healed()) return;
  world_.After(world_.random().Between(1, 2 * scene_.plan.fault_every_ms), [this] {
    if (scene_.healed()) return;
    Fault();
    ScheduleFault();
  });
}

void Simulation::Fault() {
  const int64_t nodes = static_cast<int64_t>(nodes_.size());
  const int64_t whom = world_.random().Between(0, nodes);
  if (whom == nodes) return FaultOfCoordinator(world_.random().Between(0, 4));
  FaultOfNode(nodes_[static_cast<size_t>(whom)].get());
}

void Simulation::FaultOfCoordinator(int64_t kind) {
  const Plan& plan = scene_.plan;
  Random& random = world_.random();
  if (!coordinator_.up()) return;
  if (kind == 0 && plan.crash_coordinator) {
    coordinator_.Kill();
  } else if (kind == 1 && plan.pause_coordinator) {
    const int64_t ms = Long();
    world_.Trace("coordinator", absl::StrCat("stands still for ", ms, " ms"));
    coordinator_.process().Pause(ms);
  } else if (kind == 2 && plan.store_faults && plan.crash_coordinator) {
    const bool written = random.Chance(500);
    world_.Trace("store", written ? "next write is the last, and is kept" : "next write is lost");
    coordinator_.store().CrashAtNextWrite(written);
  } else if (kind == 3 && plan.store_faults) {
    world_.Trace("store", "is full");
    coordinator_.store().FillFor(random.Between(1, kDiskFullMsMax));
  } else if (kind == 4 && plan.pause_run) {
    SayForAWhile(Order::kPause, "");
  }
}

void Simulation::FaultOfNode(Node* node) {
  const Plan& plan = scene_.plan;
  Random& random = world_.random();
  const auto come_back = [this, node] {
    world_.After(world_.random().Between(1, kDownMsMax), [node] {
      if (!node->trainer_up()) node->StartTrainer();
      if (!node->agent_up()) node->StartAgent();
    });
  };
  switch (random.Between(0, 5)) {
    case 0:
      if (!plan.crash_agent || !node->agent_up()) return;
      node->CrashAgent();
      return come_back();
    case 1:
      if (!plan.crash_trainer || !node->trainer_up()) return;
      node->CrashTrainer();
      return come_back();
    case 2:
      if (plan.pause_node) node->Pause(Long());
      return;
    case 3: {
      if (!plan.partition) return;
      const int64_t way = random.Between(0, 2), ms = Long();
      world_.Trace(node->name(), absl::StrCat(way == 0   ? "is cut off"
                                              : way == 1 ? "is not heard"
                                                         : "hears nothing",
                                              " for ", ms, " ms"));
      return node->link().Cut(way != 2, way != 1, ms);
    }
    case 4:
      if (!plan.leave || !node->agent_up()) return;
      node->Leave();
      return come_back();
    default: {
      if (!plan.drain && !plan.evict) return;
      const bool drains = plan.drain && (!plan.evict || random.Chance(500));
      SayForAWhile(drains ? Order::kDrain : Order::kEvict, node->name());
      // Meanwhile the site is at rest, or goes on as if nothing had been said.
      if (drains && random.Chance(500) && node->agent_up()) node->CrashTrainer();
      return come_back();
    }
  }
}

void Simulation::SayForAWhile(Order order, const std::string& node) {
  Say(order, node);
  const auto take_back = [this, order, node, number = orders_] {
    if (last_order_[node] == number) Say(Opposite(order), node);
  };
  world_.After(world_.random().Between(1, 2 * kDownMsMax), take_back);
}

void Simulation::Say(Order order, const std::string& node) {
  const char* const words[] = {"drain", "evict", "admit", "pause", "resume"};
  world_.Trace("operator", absl::StrCat(words[static_cast<int>(order)], " ", node));
  scene_.EndPromise(node);
  last_order_[node] = ++orders_;
  Deliver(order, node, orders_);
}

void Simulation::Deliver(Order order, const std::string& node, uint64_t number) {
  const auto again = [this, order, node, number] {
    world_.After(kOperatorRetryMs, [this, order, node, number] { Deliver(order, node, number); });
  };
  if (last_order_[node] != number) return;
  coordinator_.Receive(
      world_.random().Between(0, 100),
      [this, order, node, number, again](Coordinator& host) {
        if (last_order_[node] != number) return;
        if (!Carry(host, order, node).ok()) return again();
        ++orders_heard_;
      },
      again);
}

absl::Status Simulation::Carry(Coordinator& host, Order order, const std::string& node) {
  if (order == Order::kPause || order == Order::kResume) return CarryPause(host, order);
  if (order == Order::kAdmit) {
    v1::AdmitNodeRequest request;
    request.set_node(node);
    return host.AdmitNode(request).status();
  }
  uint64_t last_round = 0;
  if (order == Order::kDrain) {
    v1::DrainNodeRequest request;
    request.set_node(node);
    const auto drained = host.DrainNode(request);
    // One that was evicted before stays out until it is admitted.
    if (absl::IsFailedPrecondition(drained.status())) return absl::OkStatus();
    if (!drained.ok()) return drained.status();
    last_round = drained->last_round();
  } else {
    v1::EvictNodeRequest request;
    request.set_node(node);
    const absl::Status evicted = host.EvictNode(request).status();
    if (!evicted.ok()) return evicted;
    last_round = host.Look().machine.committing_round();
  }
  const uint64_t committed = host.Look().machine.committed_round();
  scene_.PromiseOut(node, std::max(last_round, committed) + 1);
  return absl::OkStatus();
}

absl::Status Simulation::CarryPause(Coordinator& host, Order order) {
  absl::Status done;
  if (order == Order::kResume) {
    done = host.ResumeRun(v1::ResumeRunRequest()).status();
  } else if (const auto paused = host.PauseRun(v1::PauseRunRequest()); paused.ok()) {
    const uint64_t committed = host.Look().machine.committed_round();
    scene_.PromiseOut("", std::max(paused->last_round(), committed) + 1);
  } else {
    done = paused.status();
  }
  return absl::IsFailedPrecondition(done) ? absl::OkStatus() : done;  // the run is finished
}

void Simulation::Heal() {
  world_.Trace("world", "the faults have ended");
  // A write that was to be the last one would come after the end of the faults.
  if (coordinator_.up()) coordinator_.store().Heal();
  if (!coordinator_.up()) coordinator_.Start();
  for (const std::unique_ptr<Node>& node : nodes_) {
    if (last_order_.count(node->name()) != 0) Say(Order::kAdmit, node->name());
  }
  if (last_order_.count("") != 0) Say(Order::kResume, "");
  KeepUp();
}

// Starts what does not run, as whoever looks after a site does: a node may have been told that it
// is evicted after it was admitted again.
void Simulation::KeepUp() {
  for (const std::unique_ptr<Node>& node : nodes_) {
    if (!node->trainer_up()) node->StartTrainer();
    if (!node->agent_up()) node->StartAgent();
  }
  if (orders_ > 0) world_.After(kKeepUpMs, [this] { KeepUp(); });
}

bool Simulation::AllDone() const {
  if (!scene_.healed() || !coordinator_.finished()) return false;
  return std::all_of(nodes_.begin(), nodes_.end(),
                     [](const std::unique_ptr<Node>& node) { return node->done(); });
}

bool Simulation::AllEqual() const {
  return std::all_of(nodes_.begin(), nodes_.end(), [this](const std::unique_ptr<Node>& node) {
    return node->trainer()->StateHash() == nodes_[0]->trainer()->StateHash();
  });
}

bool Simulation::Finished() const {
  return AllDone() && (scene_.plan.flip_permille == 0 || AllEqual());
}

void Simulation::LookAtStates() {
  world_.After(kLookAtStatesMs, [this] { LookAtStates(); });
  // Whoever finds that the sites ended in different states starts them again: the run may not have
  // heard of it before it was finished.
  if (AllDone() && !AllEqual()) {
    for (const std::unique_ptr<Node>& node : nodes_) {
      node->CrashAgent();
      node->StartAgent();
    }
  }
  coordinator_.Receive(
      world_.random().Between(0, 100),
      [this](Coordinator& host) {
        const v1::StoredStateCheck check = host.Look().state_check;
        healed_ = check.healed_count();
        if (!check.has_dispute()) return;
        v1::ChooseStateRequest request;
        request.set_node(check.dispute()
                             .states(static_cast<int>(
                                 world_.random().Between(0, check.dispute().states_size() - 1)))
                             .node());
        world_.Trace("operator", absl::StrCat("chooses the state of ", request.node()));
        const bool chosen = host.ChooseState(request).ok();
        choices_ += chosen ? 1 : 0;
        if (!chosen || coordinator_.dying()) return;
        if (!host.ChooseState(request).ok()) scene_.Fail("the same choice again is refused");
      },
      [] {});
}

std::string Simulation::Where() const {
  std::vector<std::string> states;
  for (const std::unique_ptr<Node>& node : nodes_) states.push_back(node->State());
  return absl::StrCat(absl::StrJoin(states, "; "), "; ", coordinator_.WaitingFor());
}

Verdict Simulation::Run() {
  const int64_t limit_ms = scene_.plan.limit_ms();
  while (scene_.failure().empty() && !Finished()) {
    if (world_.NowMs() > limit_ms) {
      scene_.Fail(absl::StrCat("no end in sight after ", limit_ms, " ms: ", Where()));
    } else if (!world_.RunOne()) {
      scene_.Fail(absl::StrCat("nothing happens any more: ", Where()));
    }
  }
  if (scene_.failure().empty()) CheckEnd();
  Verdict verdict;
  verdict.failure = scene_.failure();
  verdict.trace_hash = world_.trace_hash();
  verdict.simulated_ms = world_.NowMs();
  verdict.rounds = scene_.checker.last_durable();
  const HistoryChecker::Ledger ledger = scene_.checker.ledger();
  verdict.included = ledger.included;
  verdict.left_out = ledger.left_out;
  verdict.dropped = ledger.dropped;
  verdict.orders = orders_heard_;
  verdict.choices = choices_;
  verdict.healed = healed_;
  verdict.coordinator_lives = coordinator_.process().life();
  for (const auto& node : nodes_) {
    verdict.trainer_lives += node->lives();
    verdict.fetched += node->fetched();
    verdict.flipped += node->flipped();
  }
  if (!verdict.failure.empty()) return verdict;
  verdict.state = nodes_[0]->trainer()->StateHash();
  verdict.sum_error = SumError();
  verdict.loss = Loss();
  return verdict;
}

void Simulation::CheckEnd() {
  scene_.checker.Finish();
  for (const Violation& violation : scene_.checker.violations()) {
    scene_.Fail(absl::StrCat(violation.invariant, ": ", violation.sentence));
  }
  for (const std::unique_ptr<Node>& node : nodes_) {
    if (node->trainer()->round() != scene_.plan.spec.steps()) {
      scene_.Fail(absl::StrCat(node->name(), " is done at round ", node->trainer()->round()));
    }
    if (node->trainer()->StateHash() != nodes_[0]->trainer()->StateHash()) {
      scene_.Fail(absl::StrCat(node->name(), " ends in another state than ", nodes_[0]->name()));
    }
  }
}

// The worst of the nodes, in the 2-norm over all values.
double Simulation::SumError() const {
  double worst = 0;
  for (const std::unique_ptr<Node>& node : nodes_) {
    const PlainResidual& plain = node->trainer()->plain();
    const Node::Past& past = node->past();
    double difference = 0, whole = 0;
    for (size_t t = 0; t < plain.values().size(); ++t) {
      for (size_t e = 0; e < plain.values()[t].size(); ++e) {
        const double in = plain.inputs()[t][e] + past.inputs[t][e];
        const double out = plain.outputs()[t][e] + past.outputs[t][e] + past.pending[t][e] +
                           past.residual[t][e] + static_cast<double>(plain.values()[t][e]);
        difference += (in - out) * (in - out);
        whole += in * in;
      }
    }
    if (whole > 0) worst = std::max(worst, std::sqrt(difference / whole));
  }
  return worst;
}

double Simulation::Loss() const {
  double sum = 0, count = 0;
  for (const std::vector<float>& tensor : nodes_[0]->trainer()->parameters()) {
    for (const float value : tensor) {
      sum += (value - kTarget) * (value - kTarget);
      count += 1;
    }
  }
  return sum / count;
}

}  // namespace

Verdict Simulate(const Plan& plan, bool verbose) { return Simulation(plan, verbose).Run(); }

}  // namespace isthmus::sim
