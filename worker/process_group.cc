#include "worker/process_group.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/status_macros.h"
#include "worker/c10d_work.h"
#include "worker/torch_status.h"

namespace isthmus {
namespace {

// A node of one rank.
class SingleRank final : public ProcessGroup {
 public:
  int rank() const override { return 0; }
  int ranks() const override { return 1; }
  std::unique_ptr<PendingCollective> AllGather(at::Tensor part, at::Tensor full) override {
    full.copy_(part);
    return std::make_unique<Finished>(absl::OkStatus());
  }
  std::unique_ptr<PendingCollective> ReduceScatterMean(at::Tensor full, at::Tensor part) override {
    part.copy_(full);
    return std::make_unique<Finished>(absl::OkStatus());
  }
  absl::Status AllReduceSum(absl::Span<double>) override { return absl::OkStatus(); }
  absl::Status AllReduceMax(absl::Span<double>) override { return absl::OkStatus(); }
  absl::Status JoinBytes(std::string*) override { return absl::OkStatus(); }
  absl::Status Broadcast(std::string*) override { return absl::OkStatus(); }
  absl::Status Barrier() override { return absl::OkStatus(); }
};

class C10dGroup : public ProcessGroup {
 public:
  C10dGroup(c10::intrusive_ptr<c10d::Backend> backend, c10::intrusive_ptr<c10d::Store> store)
      : store_(std::move(store)), backend_(std::move(backend)) {}
  int rank() const override { return backend_->getRank(); }
  int ranks() const override { return backend_->getSize(); }

  std::unique_ptr<PendingCollective> AllGather(at::Tensor part, at::Tensor full) override {
    return StartWork([&] { return backend_->_allgather_base(full, part); });
  }
  std::unique_ptr<PendingCollective> ReduceScatterMean(at::Tensor full, at::Tensor part) override {
    c10d::ReduceScatterOptions options;
    options.reduceOp = c10d::ReduceOp::AVG;
    return StartWork([&] { return backend_->_reduce_scatter_base(part, full, options); });
  }
  absl::Status AllReduceSum(absl::Span<double> values) override {
    return AllReduce(values.data(), values.size(), at::kDouble, c10d::ReduceOp::SUM);
  }
  absl::Status AllReduceMax(absl::Span<double> values) override {
    return AllReduce(values.data(), values.size(), at::kDouble, c10d::ReduceOp::MAX);
  }
  absl::Status JoinBytes(std::string* bytes) override {
    return AllReduce(bytes->data(), bytes->size(), at::kByte, c10d::ReduceOp::SUM);
  }
  absl::Status Broadcast(std::string* bytes) override {
    if (bytes->empty()) return absl::OkStatus();
    std::vector<at::Tensor> tensors = {
        at::from_blob(bytes->data(), {static_cast<int64_t>(bytes->size())}, at::kByte)};
    return StartWork([&] { return backend_->broadcast(tensors); })->Wait();
  }
  absl::Status Barrier() override {
    return StartWork([&] { return backend_->barrier(); })->Wait();
  }

 protected:
  c10d::Backend& backend() { return *backend_; }

 private:
  absl::Status AllReduce(void* data, size_t count, at::ScalarType type,
                         c10d::ReduceOp::RedOpType operation) {
    if (count == 0) return absl::OkStatus();
    std::vector<at::Tensor> tensors = {at::from_blob(data, {static_cast<int64_t>(count)}, type)};
    c10d::AllreduceOptions options;
    options.reduceOp = operation;
    return StartWork([&] { return backend_->allreduce(tensors, options); })->Wait();
  }

  c10::intrusive_ptr<c10d::Store> store_;  // rank 0's serves the others: lives as long as the group
  c10::intrusive_ptr<c10d::Backend> backend_;
};

// The parts of all ranks under way to this one, which then makes their mean in rank order.
class PendingMean final : public PendingCollective {
 public:
  PendingMean(std::unique_ptr<PendingCollective> exchange, at::Tensor received, at::Tensor part)
      : exchange_(std::move(exchange)), received_(std::move(received)), part_(std::move(part)) {}
  absl::Status Wait() override {
    if (exchange_ == nullptr) return absl::OkStatus();
    ISTHMUS_RETURN_IF_ERROR(std::exchange(exchange_, nullptr)->Wait());
    at::NoGradGuard no_grad;
    const std::vector<at::Tensor> parts = received_.split(part_.numel());
    part_.copy_(parts[0]);
    for (size_t rank = 1; rank < parts.size(); ++rank) part_.add_(parts[rank]);
    part_.div_(static_cast<double>(parts.size()));
    return absl::OkStatus();
  }

 private:
  std::unique_ptr<PendingCollective> exchange_;
  at::Tensor received_, part_;
};

class GlooGroup final : public C10dGroup {
 public:
  using C10dGroup::C10dGroup;
  // Gloo's own reduce-scatter reduces a copy of the whole on every rank. This moves each element
  // once, and its sums have a stated order.
  std::unique_ptr<PendingCollective> ReduceScatterMean(at::Tensor full, at::Tensor part) override {
    at::Tensor received = at::empty_like(full);
    std::vector<int64_t> counts(ranks(), part.numel());
    auto exchange =
        StartWork([&] { return backend().alltoall_base(received, full, counts, counts); });
    return std::make_unique<PendingMean>(std::move(exchange), received, part);
  }
};

// This host's own address on the way to another one; empty: there is none, or no way.
std::string AddressTowards(const std::string& host) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), "1", &hints, &found) != 0) return "";
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> guard(found, &freeaddrinfo);
  const int fd = socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return "";
  // Connecting a datagram socket sends nothing; it only looks up the route.
  sockaddr_storage own = {};
  socklen_t size = sizeof(own);
  auto* const address = reinterpret_cast<sockaddr*>(&own);
  const bool routed =
      connect(fd, found->ai_addr, found->ai_addrlen) == 0 && getsockname(fd, address, &size) == 0;
  close(fd);
  char text[NI_MAXHOST] = "";
  if (routed) getnameinfo(address, size, text, sizeof(text), nullptr, 0, NI_NUMERICHOST);
  return text;
}

// Where this rank listens for the others. `host` is where rank 0 does: the way to it leads through
// the network that the ranks share, loopback where all are on one machine. Users name another
// interface by the variable that c10d knows.
std::shared_ptr<::gloo::transport::Device> GlooDevice(const std::string& host) {
  const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
  if (interface != nullptr && *interface != '\0') {
    return c10d::ProcessGroupGloo::createDeviceForInterface(interface);
  }
  const std::string own = AddressTowards(host);
  return own.empty() ? c10d::ProcessGroupGloo::createDefaultDevice()
                     : c10d::ProcessGroupGloo::createDeviceForHostname(own);
}

std::unique_ptr<ProcessGroup> ConnectGloo(c10::intrusive_ptr<c10d::Store> store, int rank,
                                          int ranks, const std::string& host) {
  auto options =
      c10d::ProcessGroupGloo::Options::create(std::chrono::milliseconds(kCollectiveTimeoutMs));
  options->devices.push_back(GlooDevice(host));
  auto backend = c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, ranks, options);
  return std::make_unique<GlooGroup>(std::move(backend), std::move(store));
}

// c10d records every collective with a stack trace, which costs more than a small collective, and
// of several groups in one process without a lock (a map in FlightRecorder::recordWithResetEnabled,
// LibTorch 2.11). A user who wants the record sets the variable.
void TurnOffFlightRecorder() { setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/0); }

}  // namespace

absl::Status CheckProcessGroupOptions(const ProcessGroupOptions& options) {
  if (options.ranks < 1 || options.ranks > static_cast<int>(kRanksMax)) {
    return absl::InvalidArgumentError(
        absl::StrCat("ranks is ", options.ranks, "; it must be 1 to ", kRanksMax));
  }
  if (options.rank < 0 || options.rank >= options.ranks) {
    return absl::InvalidArgumentError(absl::StrCat("rank is ", options.rank, "; with ",
                                                   options.ranks, " ranks it must be 0 to ",
                                                   options.ranks - 1));
  }
  if (options.ranks > 1 && (options.master_port < 1 || options.master_port > 65535)) {
    return absl::InvalidArgumentError(
        absl::StrCat("master_port is ", options.master_port, "; it must be 1 to 65535"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<ProcessGroup>> StartProcessGroup(
    const ProcessGroupOptions& options) {
  ISTHMUS_RETURN_IF_ERROR(CheckProcessGroupOptions(options));
  if (options.ranks == 1) return std::make_unique<SingleRank>();
  TurnOffFlightRecorder();
  c10d::TCPStoreOptions store;
  store.port = static_cast<uint16_t>(options.master_port);
  store.isServer = options.rank == 0;
  store.numWorkers = options.ranks;
  store.timeout = std::chrono::milliseconds(kRendezvousTimeoutMs);
  try {
    const auto met = c10::make_intrusive<c10d::TCPStore>(options.master_addr, store);
    auto group = ConnectGloo(met, options.rank, options.ranks, options.master_addr);
    if (!options.upgrade) return group;
    return options.upgrade(std::move(group), *met);
  } catch (const std::exception& error) {
    return absl::UnavailableError(absl::StrCat(
        "rank ", options.rank, " of ", options.ranks, " could not meet the others at ",
        options.master_addr, ":", options.master_port, " within ", kRendezvousTimeoutMs / 1000,
        " s: start all ranks of the node with the same MASTER_ADDR and a free MASTER_PORT (",
        TorchMessage(error), ")"));
  }
}

absl::StatusOr<std::vector<std::unique_ptr<ProcessGroup>>> StartThreadProcessGroups(int ranks) {
  std::vector<std::unique_ptr<ProcessGroup>> groups(ranks);
  if (ranks == 1) {
    groups[0] = std::make_unique<SingleRank>();
    return groups;
  }
  TurnOffFlightRecorder();
  auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::string> errors(ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        groups[rank] = ConnectGloo(store, rank, ranks, "127.0.0.1");
      } catch (const std::exception& error) {
        errors[rank] = TorchMessage(error);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& error : errors) {
    if (!error.empty()) return absl::UnavailableError(error);
  }
  return groups;
}

}  // namespace isthmus
