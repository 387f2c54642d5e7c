// The agent's side of the connection to the coordinator, as transport/session_impl.h has it with
// threads: joins, watches, sends, sends again, beats. What is sent and what has arrived decide the
// same Outbox and UpdateReader; when to try again the same Backoff.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "isthmus/v1/coordinator.pb.h"
#include "tests/sim/network.h"
#include "tests/sim/scene.h"
#include "transport/backoff.h"
#include "transport/outbox.h"
#include "transport/session.h"
#include "transport/update_reader.h"

namespace isthmus::sim {

class SimSession {
 public:
  struct Options {
    Scene* scene = nullptr;
    Process* process = nullptr;  // the agent; the session ends with its life
    Link* link = nullptr;
    v1::JoinRunRequest join;
    SessionListener* listener = nullptr;
    std::function<void(const v1::SubmitResponse&)> receipt;  // beside what a session tells
  };

  explicit SimSession(Options options);
  // Nothing is heard of it any more.
  ~SimSession();

  void Submit(std::shared_ptr<const Submission> submission, Outbox::Refused refused);
  void Acknowledge(uint64_t round, const std::string& sha256);
  // The newest checkpoint, for heartbeats.
  void SetCheckpoint(uint64_t round) { state_->checkpoint_round = round; }
  // SHA-256 of the state after a round, for heartbeats.
  void SetStateReport(uint64_t round, const std::string& sha256) {
    state_->state = {round, sha256};
  }
  // The same after a round that is checked.
  void AddCheck(uint64_t round, const std::string& sha256);
  void Leave(const std::string& reason);
  uint64_t incarnation() const { return state_->joined.incarnation(); }
  bool connected() const { return state_->watching; }

 private:
  // Shared with the calls under way, which may outlive the session.
  struct State {
    bool over = false;
    bool admitted = false;
    bool watching = false;
    bool join_again = false;
    bool finished = false;
    bool sending = false;
    v1::JoinRunResponse joined;
    uint64_t attempt = 0;
    RoundHash acknowledged;
    uint64_t told_round = 0;
    uint64_t checkpoint_round = 0;
    RoundHash state;
    std::map<uint64_t, std::string> checks;  // by round
    bool checks_untold = false;
    std::shared_ptr<Link::WatchCall> watch;
    uint64_t connection = 0;  // number of the present try
    std::optional<int64_t> other_owner_until_ms;
  };

  void After(int64_t delay_ms, std::function<void()> action);
  void Connect();
  void Joined(const RoundHash& after, const absl::StatusOr<v1::JoinRunResponse>& response);
  void Take(uint64_t connection, const WatchEvent& event);
  void WatchEnded(uint64_t connection, const absl::Status& status, bool joined);
  bool IsFatal(const absl::Status& status, bool joined);
  void Disconnect();
  void EndWith(const absl::Status& status);
  void Send();
  v1::SubmitHeader Header(const Submission& submission);
  int64_t Conclude(const Outbox::Ticket& ticket, uint64_t incarnation, const absl::Status& status,
                   Outbox::Refused* refused);
  void ScheduleBeat(uint64_t incarnation);
  void Beat();
  void TellSoon();

  const Options options_;
  World* const world_;
  Backoff watch_backoff_;
  Backoff send_backoff_;
  UpdateReader reader_;
  Outbox outbox_;
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace isthmus::sim
