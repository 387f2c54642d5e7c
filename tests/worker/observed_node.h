// A node of a run in this process: its trainer, on the real client and a real agent, with a record
// of what its state was after every round.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"

namespace isthmus {

class ObservedNode {
 public:
  // Starts to train: `data` is a file of text, `agent` the address of its agent.
  ObservedNode(const std::string& agent, const std::string& data);
  // Ends it, leaving the run.
  ~ObservedNode();

  // Ends it; what its loop returned (CANCELLED as a rule).
  absl::Status Stop();

  // SHA-256 of the state by round, of all rounds that it joined with or applied.
  std::map<uint64_t, std::string> states() const;
  // The last of them; 0: none.
  uint64_t last_round() const;
  // The rounds that it joined with, and those that it sent contributions to.
  std::vector<uint64_t> joined() const;
  std::vector<uint64_t> sent() const;
  // Of its contributions, as they were sent.
  uint64_t sent_bytes() const;

 private:
  friend class ObservedClient;
  void Run(const std::string& agent, const std::string& data);

  mutable std::mutex mutex_;
  std::map<uint64_t, std::string> states_;
  std::vector<uint64_t> joined_, sent_;
  uint64_t sent_bytes_ = 0;
  absl::Status status_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace isthmus
