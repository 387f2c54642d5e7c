// Where the gradients lead.
inline constexpr float kTarget = 0.5f;

// A node's trainer with one rank: the state that a run is about. Its method is the product's; what
// it computes is a function of the run's seed, the node, the round and the parameters.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/sim/plain_residual.h"
#include "tests/sim/scene.h"
#include "transport/session.h"
#include "worker/methods/demo_shard.h"

namespace isthmus::sim {

class Trainer {
 public:
  // A contribution (or an abstention) to a round that is not settled.
  struct Pending {
    std::shared_ptr<const Submission> submission;
    std::string digest;  // of what it should have been; empty: nothing was reserved
    bool settled_early = false;
  };
  // What survives the process: one atomic set at a committed round. The start state is round 0.
  struct Checkpoint {
    uint64_t round = 0;
    std::string sha256;
    Tensors parameters;
    std::shared_ptr<const DemoShard> method;  // null: residual zero
    std::shared_ptr<const PlainResidual> plain;
    std::map<uint64_t, Pending> pending;  // with overlap
  };
  static Checkpoint StartState(const Scene& scene);

  // A life begins. `replay`: with the checkpoint's residual, and every round since then is computed
  // anew; else the residual is zero.
  Trainer(Scene* scene, size_t number, const std::string& node, uint64_t life,
          const Checkpoint& from, bool replay);

  uint64_t round() const { return round_; }
  const std::string& sha256() const { return sha256_; }
  uint64_t attempt() const { return attempt_; }
  // Also of what an earlier life computed.
  void set_attempt(uint64_t attempt);
  std::string StateHash() const;
  const Tensors& parameters() const { return parameters_; }

  // The contribution to a round, made now. It stays until it is settled, for sending again.
  std::shared_ptr<const Submission> Compute(uint64_t round);
  // Null: there is none.
  std::shared_ptr<const Submission> pending(uint64_t round) const;
  const std::map<uint64_t, Pending>& all_pending() const { return pending_; }
  // An update has arrived. `own_included`: the agent's word that it has what this life sent; a
  // trainer that replays knows by itself.
  void Take(const CommittedUpdate& update, bool own_included);
  // A receipt has come (only a bug makes something of it).
  void TakeReceipt(uint64_t round);
  Checkpoint Save() const;
  void FlipBit();
  // The life ends: what is not settled is counted as dropped.
  void Die();

  const PlainResidual& plain() const { return plain_; }
  uint64_t skipped() const { return skipped_; }

 private:
  Tensors Gradient(uint64_t round) const;
  static std::vector<TensorPart<float>> Parts(Tensors* tensors);
  void Settle(uint64_t round, bool included);
  void Replay(const v1::UpdateRecord& record);
  void Record(EventKind kind, uint64_t round, Outcome outcome = Outcome::kNone);
  bool IsReserved(const Pending& pending) const {
    return !pending.digest.empty() && !pending.settled_early;
  }
  void CheckResidual();

  Scene* const scene_;
  const size_t number_;
  const std::string node_;
  const uint64_t life_;
  const bool replay_;
  uint64_t round_;
  std::string sha256_;
  uint64_t attempt_ = 0;
  Tensors parameters_;
  std::unique_ptr<DemoShard> method_;
  PlainResidual plain_;
  std::map<uint64_t, Pending> pending_;
  uint64_t computed_;  // the last round
  uint64_t skipped_ = 0;
};

}  // namespace isthmus::sim
