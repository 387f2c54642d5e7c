#include "tools/wan/relay.h"

#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "tools/wan/tun.h"

namespace isthmus::wan {
namespace {

// Packets on their way in one direction: 67 MB at an MTU of 1500, more than any window of TCP, in
// 92 MB of buffers. Only a link without a rate can come near it.
constexpr int64_t kInFlightMax = 45'000;
// Packets taken from one device before the others have their turn.
constexpr int kTakeAtOnce = 32;
// Buffers that are kept for reuse.
constexpr size_t kSpareMax = 4096;
constexpr size_t kCommandBytesMax = 4096;
constexpr size_t kLinksMax = 200;

constexpr uint64_t kCommandsTag = ~uint64_t{0};
constexpr uint64_t kOwnerTag = kCommandsTag - 1;

int64_t NowNs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec;
}

absl::Status Failed(absl::string_view what) {
  return absl::ErrnoToStatus(errno, absl::StrCat(what, ": ", std::strerror(errno)));
}

// Different inputs give unrelated seeds (the finalizer of SplitMix64, Steele et al. 2014).
uint64_t Mix(uint64_t value) {
  value += 0x9e3779b97f4a7c15;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Relay>> Relay::Create(uint64_t seed) {
  const int epoll = epoll_create1(EPOLL_CLOEXEC);
  if (epoll < 0) return Failed("epoll_create1");
  return std::unique_ptr<Relay>(new Relay(seed, epoll));
}

Relay::~Relay() {
  for (auto& [name, link] : links_) {
    close(link->up.from);
    close(link->down.from);
  }
  close(epoll_);
}

absl::Status Relay::Watch(int fd, uint64_t tag) {
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.u64 = tag;
  if (epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) != 0) return Failed("epoll_ctl");
  return absl::OkStatus();
}

absl::Status Relay::Run(int commands_fd, int answers_fd, int owner_pid) {
  ISTHMUS_RETURN_IF_ERROR(Watch(commands_fd, kCommandsTag));
  // The end of the commands alone is not enough: another child of the owner may hold their pipe.
  const int owner = static_cast<int>(syscall(SYS_pidfd_open, owner_pid, 0));
  if (owner < 0) return Failed("pidfd_open of the owner");
  ISTHMUS_RETURN_IF_ERROR(Watch(owner, kOwnerTag));
  while (true) {
    timespec timeout = {};
    if (!heap_.empty()) {
      const int64_t left_ns = std::max<int64_t>(0, heap_.front().release_ns - NowNs());
      timeout.tv_sec = left_ns / 1'000'000'000;
      timeout.tv_nsec = left_ns % 1'000'000'000;
    }
    epoll_event events[16];
    const int count = epoll_pwait2(epoll_, events, 16, heap_.empty() ? nullptr : &timeout, nullptr);
    if (count < 0 && errno != EINTR) return Failed("epoll_pwait2");
    for (int i = 0; i < count; ++i) {
      const uint64_t tag = events[i].data.u64;
      if (tag == kOwnerTag) return absl::OkStatus();
      if (tag == kCommandsTag) {
        ISTHMUS_ASSIGN_OR_RETURN(const bool more, ReadCommands(commands_fd, answers_fd));
        if (!more) return absl::OkStatus();
      } else {
        Take(directions_[tag]);
      }
    }
    DeliverDue(NowNs());
  }
}

absl::StatusOr<bool> Relay::ReadCommands(int commands_fd, int answers_fd) {
  char buffer[kCommandBytesMax];
  const ssize_t got = read(commands_fd, buffer, sizeof(buffer));
  if (got < 0) return Failed("cannot read commands");
  if (got == 0) return false;
  commands_.append(buffer, got);
  for (size_t end = commands_.find('\n'); end != std::string::npos; end = commands_.find('\n')) {
    const std::string answer = Answer(absl::string_view(commands_).substr(0, end)) + "\n";
    commands_.erase(0, end + 1);
    if (write(answers_fd, answer.data(), answer.size()) < 0) return Failed("cannot answer");
  }
  if (commands_.size() >= kCommandBytesMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a command of more than ", kCommandBytesMax, " bytes"));
  }
  return true;
}

std::string Relay::Answer(absl::string_view line) {
  const absl::StatusOr<std::string> answer = Command(line);
  if (answer.ok()) return answer->empty() ? "ok" : absl::StrCat("ok ", *answer);
  return absl::StrCat("error ", answer.status().message());
}

absl::StatusOr<std::string> Relay::Command(absl::string_view line) {
  const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
  if (words.size() == 6 && words[0] == "link") return MakeLink(words);
  if (words.size() >= 3 && words[0] == "set") return SetShape(words);
  if (words.size() != 2 || words[0] != "stats") {
    return absl::InvalidArgumentError(absl::StrCat("not a command: '", line, "'"));
  }
  ISTHMUS_ASSIGN_OR_RETURN(const Link* link, Find(words[1]));
  std::vector<std::string> parts;
  for (const bool up : {true, false}) {
    const Counters& c = (up ? link->up : link->down).counters;
    const char* way = up ? "up." : "down.";
    for (const auto& [name, value] :
         std::initializer_list<std::pair<const char*, int64_t>>{{"passed", c.passed},
                                                                {"passed_bytes", c.passed_bytes},
                                                                {"cut", c.cut},
                                                                {"queue_full", c.queue_full},
                                                                {"lost", c.lost},
                                                                {"reordered", c.reordered},
                                                                {"duplicated", c.duplicated},
                                                                {"corrupted", c.corrupted},
                                                                {"refused", c.refused}}) {
      parts.push_back(absl::StrCat(way, name, "=", value));
    }
  }
  return absl::StrJoin(parts, " ");
}

absl::StatusOr<Relay::Link*> Relay::Find(absl::string_view name) {
  const auto found = links_.find(name);
  if (found == links_.end()) {
    return absl::NotFoundError(absl::StrCat("there is no link '", name, "'"));
  }
  return found->second.get();
}

absl::StatusOr<std::string> Relay::MakeLink(const std::vector<absl::string_view>& words) {
  const std::string name(words[1]);
  if (links_.count(name) > 0) {
    return absl::AlreadyExistsError(absl::StrCat("there is a link '", name, "' already"));
  }
  if (links_.size() >= kLinksMax) {
    return absl::ResourceExhaustedError(absl::StrCat(kLinksMax, " links are the most"));
  }
  ISTHMUS_ASSIGN_OR_RETURN(const int hub, OpenTun(std::string(words[2]), std::string(words[3])));
  absl::StatusOr<int> site = OpenTun(std::string(words[4]), std::string(words[5]));
  if (!site.ok()) {
    close(hub);
    return site.status();
  }
  const uint64_t first = directions_.size();
  auto link = std::make_unique<Link>(Mix(seed_ + first), Mix(seed_ + first + 1));
  link->up.from = link->down.to = *site;
  link->up.to = link->down.from = hub;
  directions_.push_back(&link->up);
  directions_.push_back(&link->down);
  links_[name] = std::move(link);
  ISTHMUS_RETURN_IF_ERROR(Watch(*site, first));
  ISTHMUS_RETURN_IF_ERROR(Watch(hub, first + 1));
  return "";
}

absl::StatusOr<std::string> Relay::SetShape(const std::vector<absl::string_view>& words) {
  ISTHMUS_ASSIGN_OR_RETURN(Link * link, Find(words[1]));
  std::vector<Direction*> directions;
  if (words[2] == "up" || words[2] == "both") directions.push_back(&link->up);
  if (words[2] == "down" || words[2] == "both") directions.push_back(&link->down);
  if (directions.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("direction is '", words[2], "': say up, down or both"));
  }
  std::vector<Shape> shapes;
  for (const Direction* direction : directions) {
    Shape shape = direction->shaper.shape();
    for (size_t i = 3; i < words.size(); ++i) {
      const std::pair<std::string, std::string> field =
          absl::StrSplit(words[i], absl::MaxSplits('=', 1));
      ISTHMUS_RETURN_IF_ERROR(SetField(field.first, field.second, &shape));
    }
    shapes.push_back(shape);
  }
  for (size_t i = 0; i < directions.size(); ++i) directions[i]->shaper.Set(shapes[i]);
  return "";
}

std::unique_ptr<Packet> Relay::NewPacket() {
  if (spare_.empty()) return std::unique_ptr<Packet>(new Packet);
  std::unique_ptr<Packet> packet = std::move(spare_.back());
  spare_.pop_back();
  return packet;
}

void Relay::Recycle(std::unique_ptr<Packet> packet) {
  if (spare_.size() < kSpareMax) spare_.push_back(std::move(packet));
}

void Relay::Take(Direction* direction) {
  for (int i = 0; i < kTakeAtOnce; ++i) {
    std::unique_ptr<Packet> packet = NewPacket();
    const ssize_t got = read(direction->from, packet->data.data(), packet->data.size());
    if (got <= 0) {
      const bool is_gone = got < 0 && errno != EAGAIN && errno != EINTR;
      // A device whose namespace was removed would be reported for ever.
      if (is_gone) epoll_ctl(epoll_, EPOLL_CTL_DEL, direction->from, nullptr);
      Recycle(std::move(packet));
      return;
    }
    packet->bytes = static_cast<int>(got);
    Handle(direction, NowNs(), std::move(packet));
  }
}

void Relay::Handle(Direction* direction, int64_t now_ns, std::unique_ptr<Packet> packet) {
  Counters& counters = direction->counters;
  const Verdict verdict = direction->shaper.Offer(now_ns, packet->bytes);
  if (verdict.outcome == Outcome::kCut) ++counters.cut;
  if (verdict.outcome == Outcome::kQueueFull) ++counters.queue_full;
  if (verdict.outcome == Outcome::kLost) ++counters.lost;
  if (verdict.outcome != Outcome::kPass) return Recycle(std::move(packet));
  if (direction->in_flight >= kInFlightMax) {
    ++counters.refused;
    return Recycle(std::move(packet));
  }
  if (verdict.reordered) ++counters.reordered;
  if (verdict.corrupt_bit >= 0) {
    ++counters.corrupted;
    packet->data[verdict.corrupt_bit / 8] ^= static_cast<uint8_t>(1 << (verdict.corrupt_bit % 8));
  }
  if (verdict.duplicate) {
    ++counters.duplicated;
    Hold(direction, verdict.release_ns, std::make_unique<Packet>(*packet));
  }
  if (verdict.release_ns <= now_ns && direction->in_flight == 0) {
    Deliver(direction, *packet);
    return Recycle(std::move(packet));
  }
  Hold(direction, verdict.release_ns, std::move(packet));
}

void Relay::Hold(Direction* direction, int64_t release_ns, std::unique_ptr<Packet> packet) {
  ++direction->in_flight;
  heap_.push_back({release_ns, number_++, direction, std::move(packet)});
  std::push_heap(heap_.begin(), heap_.end(), Later());
}

void Relay::Deliver(Direction* direction, const Packet& packet) {
  // What a device cannot take is lost, as at any network card; TCP sends it again.
  if (write(direction->to, packet.data.data(), packet.bytes) < 0) {
    ++direction->counters.refused;
    return;
  }
  ++direction->counters.passed;
  direction->counters.passed_bytes += packet.bytes;
}

void Relay::DeliverDue(int64_t now_ns) {
  while (!heap_.empty() && heap_.front().release_ns <= now_ns) {
    std::pop_heap(heap_.begin(), heap_.end(), Later());
    InFlight due = std::move(heap_.back());
    heap_.pop_back();
    --due.direction->in_flight;
    Deliver(due.direction, *due.packet);
    Recycle(std::move(due.packet));
  }
}

}  // namespace isthmus::wan
