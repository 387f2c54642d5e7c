// A run inside one process, for tests of the trainer: stands in for agent and coordinator behind
// RankClient. It merges as the coordinator does (ascending node, kernels' MergeBySenders; with an
// outer optimizer kernels/aggregate.h, for runs with PLACEMENT_REPLICATED) and
// publishes a round when every rank of every node has submitted or abstained. With overlap rounds
// open and are published as there.
//
//   LocalRun run(spec, {{"a", 2}, {"b", 2}});
//   ... one thread a rank: Trainer with run.Client("a", 0) ...
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "isthmus/v1/coordinator.pb.h"
#include "spec/grid.h"
#include "worker/rank_client.h"

namespace isthmus {

class LocalRun {
 public:
  LocalRun(v1::RunSpec spec, std::map<std::string, int> ranks_of_node);

  std::unique_ptr<RankClient> Client(const std::string& node, int rank);

  // Between two groups of trainers: the node's next one has so many ranks.
  void ChangeRanks(const std::string& node, int ranks) { ranks_of_node_[node] = ranks; }

  // Nodes whose contribution to this round is left out, though it came.
  void LeaveOut(uint64_t round, const std::string& node);

  // The round is committed when all other nodes are done with it.
  void CloseWithout(uint64_t round, const std::string& node);
  // Waits until so many rounds are committed.
  void WaitRounds(uint64_t rounds);

  // Rounds committed so far.
  uint64_t rounds() {
    std::lock_guard<std::mutex> lock(mutex_);
    return updates_.size();
  }

  // What happened, for expectations. Call them when the trainers have ended.
  const std::vector<std::string>& abstain_reasons() const { return abstain_reasons_; }
  const std::vector<std::shared_ptr<const CommittedUpdate>>& updates() const { return updates_; }
  // What each node said its contribution was made from, by round.
  const std::map<uint64_t, std::map<std::string, Work>>& works() const { return works_; }
  const std::vector<v1::JoinRunRequest>& joins() const { return joins_; }
  // The newest checkpoint that ranks of each node told.
  const std::map<std::string, uint64_t>& checkpointed() const { return checkpointed_; }

 private:
  friend class LocalClient;
  // What a rank sends of a round.
  struct RankPart {
    std::vector<std::string> pieces;
    Work work;
    std::string abstain_reason;
  };
  struct NodeRound {
    int ranks_done = 0;
    Work work = {0, 0};
    bool abstained = false;
    std::vector<std::string> pieces;
  };

  absl::Status Join(const v1::JoinRunRequest& request);
  void Done(const std::string& node, uint64_t round, RankPart part);
  // With the lock held.
  bool IsComplete(uint64_t round);
  void Commit(uint64_t round);
  std::vector<std::string> Aggregate(const std::vector<std::vector<Components>>& senders) const;

  v1::RunSpec spec_;
  std::map<std::string, int> ranks_of_node_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Grid> grid_;
  std::vector<v1::JoinRunRequest> joins_;
  std::map<std::string, uint64_t> checkpointed_;
  std::map<uint64_t, std::map<std::string, NodeRound>> open_;  // of open rounds, by node
  std::map<uint64_t, std::vector<std::string>> left_out_;
  std::map<uint64_t, std::set<std::string>> closes_without_;
  std::map<uint64_t, std::map<std::string, Work>> works_;
  std::vector<std::string> abstain_reasons_;
  std::vector<std::shared_ptr<const CommittedUpdate>> updates_;  // of round i + 1
};

}  // namespace isthmus
