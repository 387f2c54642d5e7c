// Whether this process still takes new connections. gRPC stops listening for good when accept() has
// failed once for want of a descriptor (grpc/grpc#20418, #16058): calls on open connections go on,
// new ones never come, and nothing says so. Who serves asks itself, and ends where the answer is
// no; a supervisor starts it again.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace isthmus {

// A pause longer than the probe's own time limit (a stopped process, a busy machine) fails one
// probe at most, so one failure alone means nothing.
inline constexpr int kSelfProbeFailuresMax = 2;
inline constexpr int kSelfProbePauseMs = 2000;
inline constexpr int kSelfProbeTimeoutMs = 3000;

struct SelfProbeOptions {
  std::vector<std::string> addresses;  // as served: "HOST:PORT", "[IPV6]:PORT" or "unix:PATH"
  int pause_ms = kSelfProbePauseMs;
  int timeout_ms = kSelfProbeTimeoutMs;
};

// The address by which this machine reaches what listens on `served`: of one that stands for all
// (0.0.0.0, ::) the loopback address. INVALID_ARGUMENT: it does not parse.
absl::StatusOr<std::string> ReachedBy(const std::string& served);

// OK: a new connection was accepted and its first frames answered within timeout_ms. UNAVAILABLE,
// naming the address, otherwise. CANCELLED: `is_over` has said so, which is asked many times a
// second.
absl::Status ProbeAddress(
    const std::string& address, int timeout_ms,
    const std::function<bool()>& is_over = [] { return false; });

// Probes all addresses, again and again, on a thread of its own, which ends at once with it: the
// end of a process does not wait for a probe.
class SelfProbe {
 public:
  explicit SelfProbe(SelfProbeOptions options);
  ~SelfProbe();

  // Whether the same address has failed kSelfProbeFailuresMax times in a row. Stays so.
  bool dead() const { return dead_; }
  // What the last of these probes found. OK before.
  absl::Status why() const;

 private:
  void Run();
  // True: waited so long. False: the end.
  bool Pause();
  bool is_ending() const;

  const SelfProbeOptions options_;
  std::atomic<bool> dead_{false};
  mutable std::mutex mutex_;
  std::condition_variable ended_;
  bool is_ending_ = false;
  absl::Status why_;
  std::thread thread_;
};

}  // namespace isthmus
