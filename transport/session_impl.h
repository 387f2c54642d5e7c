// The threads of a session. What is sent decides Outbox, what has arrived UpdateReader; here they
// meet the connection and the clock.
//
//   watch thread   joins, watches, and on a lost connection does both again    session_watch.cc
//   send thread    sends what the outbox names while a watch is open           session_send.cc
//   beat thread    heartbeats of a node                                        session_send.cc
//
// One mutex guards what they share; no call to the server or to the listener is made under it.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "transport/backoff.h"
#include "transport/client.h"
#include "transport/outbox.h"
#include "transport/session.h"
#include "transport/session_notifier.h"
#include "transport/update_reader.h"

namespace isthmus {

class SessionImpl final : public Session {
 public:
  explicit SessionImpl(const SessionOptions& options);
  ~SessionImpl() override { Stop(); }

  absl::Status Start();
  void Submit(std::shared_ptr<const Submission> submission,
              std::function<void(const absl::Status&)> refused) override;
  void Acknowledge(uint64_t round, const std::string& update_sha256) override;
  void SetCheckpointRound(uint64_t round) override;
  void SetStateReport(uint64_t round, const std::string& sha256) override;
  void AddCheck(uint64_t round, const std::string& state_sha256) override;
  bool busy() const override { return sending_; }
  void SetWaitingFor(const std::string& sentence) override;
  void Leave(const std::string& reason) override;
  SessionCounters counters() const override;

 private:
  using Steady = std::chrono::steady_clock;
  using Milliseconds = std::chrono::milliseconds;
  using Lock = std::unique_lock<std::mutex>;

  bool is_node() const { return options_.join.role() == v1::ROLE_NODE; }
  bool over() const { return stopping_ || leaving_ || !fatal_.ok(); }  // under the mutex
  void Stop();
  // What to tell of a failure that is waited out; names the peer when the peer did not answer.
  std::string Sentence(const absl::Status& why) const;
  // Something was applied that no message upwards has told. Under the mutex.
  bool untold() const { return acknowledged_.round > told_round_ || state_untold_; }
  // Under the mutex.
  void Disconnect();
  void EndWith(const absl::Status& status);

  // Watch thread.
  void WatchLoop();
  absl::Status JoinAndWatch(Client* client, bool* joined);
  v1::WatchUpdatesRequest WatchRequest(const v1::JoinRunResponse& joined, const RoundHash& after);
  absl::Status OnEvent(v1::WatchUpdatesResponse* event);
  bool IsFatal(const absl::Status& status, bool joined);
  std::shared_ptr<Client> ClientForNextTry(const absl::Status& last);
  void Wait(const absl::Status& why);

  // Send thread.
  void SendLoop();
  v1::SubmitHeader Header(const Submission& submission);
  // Returns how long to wait before the next one, 0 for not at all.
  int64_t Conclude(const Outbox::Ticket& ticket, uint64_t incarnation, const absl::Status& status,
                   Outbox::Refused* refused);

  // Beat thread.
  void BeatLoop();
  v1::HeartbeatRequest MakeHeartbeat() const;  // under the mutex
  void Beat(Lock* lock);

  const SessionOptions options_;
  ClientOptions client_options_;
  std::atomic<uint64_t> bytes_up_{0};
  std::atomic<bool> sending_{false};
  SessionNotifier notifier_;
  UpdateReader reader_;  // watch thread only, as the next three
  Backoff watch_backoff_;
  std::optional<Steady::time_point> other_owner_until_;
  std::optional<Steady::time_point> watch_began_;
  Backoff send_backoff_;  // send thread only

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<Client> client_;
  Outbox outbox_;
  RoundHash acknowledged_;
  uint64_t told_round_;  // the last acknowledged round that a message carried
  uint64_t checkpoint_round_ = 0;
  RoundHash state_;            // the last that was reported
  bool state_untold_ = false;  // and no heartbeat has told it, or a check, to this server
  std::map<uint64_t, std::string> checks_;  // by round
  std::string waiting_for_;
  uint64_t attempt_;
  v1::JoinRunResponse joined_;  // the last one; its spec's sizes are small
  bool admitted_ = false;       // joined_ holds: from a JoinRun to the end of its watch
  bool watching_ = false;       // and the watch has begun
  bool join_again_ = false;     // the server asked for it; the client was cancelled for it
  bool finished_ = false;
  bool leaving_ = false;
  bool stopping_ = false;
  absl::Status fatal_;
  SessionCounters counters_;

  std::vector<std::thread> threads_;
};

// The connection broke, as opposed to a server that answered.
bool IsConnectionLost(const absl::Status& status);

}  // namespace isthmus
