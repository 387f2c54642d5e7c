#include "transport/self_probe.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "grpc/support/time.h"
#include "grpcpp/channel.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/channel_arguments.h"
#include "transport/addresses.h"
#include "transport/grpc_library.h"

namespace isthmus {
namespace {

// Between two looks whether a probe is over.
constexpr int kLookMs = 50;

}  // namespace

absl::StatusOr<std::string> ReachedBy(const std::string& served) {
  ISTHMUS_ASSIGN_OR_RETURN(Address address, ParseAddress(served));
  if (address.host == "0.0.0.0") address.host = "127.0.0.1";
  if (address.host == "::") address.host = "::1";
  return AddressText(address);
}

absl::Status ProbeAddress(const std::string& address, int timeout_ms,
                          const std::function<bool()>& is_over) {
  KeepGrpcForLife();
  ISTHMUS_ASSIGN_OR_RETURN(const std::string reached, ReachedBy(address));
  grpc::ChannelArguments arguments;
  // A connection of its own: an open one tells nothing about new ones.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  const auto channel =
      grpc::CreateCustomChannel(reached, grpc::InsecureChannelCredentials(), arguments);
  for (int waited_ms = 0; waited_ms < timeout_ms; waited_ms += kLookMs) {
    const gpr_timespec look =
        gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(kLookMs, GPR_TIMESPAN));
    if (channel->WaitForConnected(look)) return absl::OkStatus();
    if (is_over()) return absl::CancelledError("the probe is no longer wanted");
  }
  return absl::UnavailableError(absl::StrCat("no new connection to ", reached, " was taken within ",
                                             timeout_ms,
                                             " ms; too few descriptors (ulimit -n), most likely"));
}

SelfProbe::SelfProbe(SelfProbeOptions options)
    : options_(std::move(options)), thread_([this] { Run(); }) {}

SelfProbe::~SelfProbe() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    is_ending_ = true;
  }
  ended_.notify_all();
  thread_.join();
}

absl::Status SelfProbe::why() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return why_;
}

bool SelfProbe::is_ending() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return is_ending_;
}

bool SelfProbe::Pause() {
  std::unique_lock<std::mutex> lock(mutex_);
  return !ended_.wait_for(lock, std::chrono::milliseconds(options_.pause_ms),
                          [this] { return is_ending_; });
}

void SelfProbe::Run() {
  std::vector<int> failures(options_.addresses.size());
  while (!dead_ && Pause()) {
    for (size_t i = 0; i < failures.size(); ++i) {
      const absl::Status found =
          ProbeAddress(options_.addresses[i], options_.timeout_ms, [this] { return is_ending(); });
      if (absl::IsCancelled(found)) return;
      failures[i] = found.ok() ? 0 : failures[i] + 1;
      if (failures[i] < kSelfProbeFailuresMax) continue;
      std::lock_guard<std::mutex> lock(mutex_);
      why_ = found;
      dead_ = true;
    }
  }
}

}  // namespace isthmus
