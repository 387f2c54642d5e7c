// Joins pairs of TUN devices and does to each packet what its direction's Shaper says.
//
// It is driven by lines of text, each answered by one line, "ok …" or "error …":
//   link NAME HUB_NAMESPACE HUB_DEVICE SITE_NAMESPACE SITE_DEVICE   makes both devices, joins them
//   set NAME up|down|both FIELD=VALUE…     changes settings (fields: see Shape); none on an error
//   stats NAME                             packets since the start: ok up.passed=… … down.passed=…
// "up" is from the site to the hub. One thread; not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <queue>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tools/wan/shaper.h"

namespace isthmus::wan {

// More than the MTU of any device here; one read takes one packet.
inline constexpr int kPacketBytesMax = 2048;

struct Packet {
  int bytes = 0;
  std::array<uint8_t, kPacketBytesMax> data;
};

class Relay {
 public:
  // `seed` starts all random draws; each direction of each link has its own sequence.
  static absl::StatusOr<std::unique_ptr<Relay>> Create(uint64_t seed);
  ~Relay();

  // Moves packets and answers commands until `commands_fd` ends or the process `owner_pid` does.
  // Answers go to `answers_fd`.
  absl::Status Run(int commands_fd, int answers_fd, int owner_pid);

 private:
  struct Counters {
    int64_t passed = 0, passed_bytes = 0, cut = 0, queue_full = 0, lost = 0, reordered = 0;
    int64_t duplicated = 0, corrupted = 0, refused = 0;
  };

  // One direction of a link: packets come out of `from` and go into `to`.
  struct Direction {
    explicit Direction(uint64_t seed) : shaper(seed) {}
    int from = -1;
    int to = -1;
    Shaper shaper;
    Counters counters;
    int64_t in_flight = 0;  // packets
  };

  struct Link {
    Link(uint64_t up_seed, uint64_t down_seed) : up(up_seed), down(down_seed) {}
    Direction up, down;
  };

  struct InFlight {
    int64_t release_ns;
    uint64_t number;  // keeps the order of packets with one release time
    Direction* direction;
    std::unique_ptr<Packet> packet;
  };

  // Whether a arrives after b, for a heap with the first arrival on top.
  struct Later {
    bool operator()(const InFlight& a, const InFlight& b) const {
      if (a.release_ns != b.release_ns) return a.release_ns > b.release_ns;
      return a.number > b.number;
    }
  };

  Relay(uint64_t seed, int epoll) : seed_(seed), epoll_(epoll) {}

  absl::Status Watch(int fd, uint64_t tag);
  absl::StatusOr<bool> ReadCommands(int commands_fd, int answers_fd);
  std::string Answer(absl::string_view line);
  absl::StatusOr<std::string> Command(absl::string_view line);
  absl::StatusOr<std::string> MakeLink(const std::vector<absl::string_view>& words);
  absl::StatusOr<std::string> SetShape(const std::vector<absl::string_view>& words);
  absl::StatusOr<Link*> Find(absl::string_view name);

  void Take(Direction* direction);
  void Handle(Direction* direction, int64_t now_ns, std::unique_ptr<Packet> packet);
  void Hold(Direction* direction, int64_t release_ns, std::unique_ptr<Packet> packet);
  void Deliver(Direction* direction, const Packet& packet);
  void DeliverDue(int64_t now_ns);
  std::unique_ptr<Packet> NewPacket();
  void Recycle(std::unique_ptr<Packet> packet);

  const uint64_t seed_;
  const int epoll_;
  uint64_t number_ = 0;
  std::string commands_;  // what has come of a line that has not ended yet
  std::map<std::string, std::unique_ptr<Link>, std::less<>> links_;
  std::vector<Direction*> directions_;
  std::vector<InFlight> heap_;  // by std::push_heap with Later
  std::vector<std::unique_ptr<Packet>> spare_;
};

}  // namespace isthmus::wan
