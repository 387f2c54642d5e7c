// A node: an agent and its trainer, which live and die each by itself. What the agent decides
// (whose contribution an update has) is as worker/agent.cc has it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "tests/sim/network.h"
#include "tests/sim/scene.h"
#include "tests/sim/session.h"
#include "tests/sim/trainer.h"

namespace isthmus::sim {

class Node final : private SessionListener {
 public:
  Node(Scene* scene, size_t number, CoordinatorProcess* coordinator);
  ~Node() override;

  void StartAgent();
  void StartTrainer();
  void CrashAgent();    // the trainer lives on
  void CrashTrainer();  // and the agent with its session, as both are of one machine
  void Pause(int64_t ms);
  // Leaves the run in good order, and comes back later by StartAgent.
  void Leave();

  const std::string& name() const { return name_; }
  Link& link() { return link_; }
  bool agent_up() const { return agent_.up(); }
  bool trainer_up() const { return trainer_ != nullptr; }
  // It has all of the run.
  bool done() const { return done_; }
  uint64_t lives() const { return machine_.life(); }
  const Trainer* trainer() const { return trainer_.get(); }
  std::string State() const;

  // Of lives that are over, for the sums.
  struct Past {
    Sums inputs, outputs, residual, pending;
  };
  const Past& past() const { return past_; }
  uint64_t skipped() const { return skipped_; }
  uint64_t fetched() const { return fetched_; }
  uint64_t flipped() const { return flipped_.size(); }

 private:
  // What an agent keeps in its state folder.
  struct Folder {
    std::string secret;
    struct Sent {
      uint64_t attempt = 0;
      std::string digest;
    };
    std::map<uint64_t, Sent> sent;  // by round, the last ones
  };

  void OnJoined(const v1::JoinRunResponse& joined) override;
  void OnOpened(const v1::RoundOpened& opened) override;
  void OnUpdate(std::shared_ptr<const CommittedUpdate> update) override;
  void OnFinished(uint64_t last_round) override;
  void OnEnded(const absl::Status& status) override;
  void OnWaiting(const std::string&) override {}

  void Connect();
  // snapshots.cc: as worker/snapshot_uploader.cc and worker/trainer_snapshot.cc have it.
  void DoSnapshotDuty(v1::SnapshotDuty duty);
  void Upload(std::shared_ptr<const v1::SnapshotFacts> facts, std::string values, uint64_t life);
  void Fetch();
  void StartFrom(const v1::SnapshotFacts& facts, const std::string& values);
  v1::SnapshotFacts Facts() const;
  void ComputeNext();
  void Compute(uint64_t round);
  void Send(uint64_t round);
  bool OwnIncluded(const v1::UpdateRecord& record) const;
  void Bury();
  void Trace(const std::string& what) { scene_->world.Trace(name_, what); }

  Scene* const scene_;
  const size_t number_;
  const std::string name_;
  Link link_;
  Process agent_;
  Process machine_;  // of the trainer
  Folder folder_;
  Trainer::Checkpoint checkpoint_;
  std::unique_ptr<SimSession> session_;
  std::unique_ptr<Trainer> trainer_;
  std::map<uint64_t, v1::SnapshotDuty> opened_;  // rounds that the session has said are open
  uint64_t computing_ = 0;                       // 0: nothing
  uint64_t fetched_ = 0;                         // snapshots that it started from
  RoundHash checked_;                            // the state after the last round that was checked
  std::set<uint64_t> flipped_;                   // rounds after which a bit of the state was
  bool done_ = false;
  uint64_t skipped_ = 0;
  Past past_;
};

}  // namespace isthmus::sim
