// What a link does to the packets of one direction: rate, queue, delay, jitter, loss, reorder,
// duplicates, corruption, cut. Pure: time comes in as an argument and the verdict goes out as a
// value, so the relay that moves the bytes and the tests share every decision.
//
//   Shaper shaper(/*seed=*/1);
//   shaper.Set({.rate_mbit = 10, .delay_ms = 20});
//   Verdict verdict = shaper.Offer(now_ns, packet_bytes);
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <random>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace isthmus::wan {

// Settings of one direction. Probabilities are between 0 and 1, each packet draws by itself.
struct Shape {
  double rate_mbit = 0;  // 10^6 bits of IP packets a second; 0 is no limit
  double delay_ms = 0;   // one way
  double jitter_ms = 0;  // each packet is late by a uniform draw from 0 to this; order is kept
  double loss = 0;
  double reorder = 0;     // a drawn packet comes reorder_ms late, those behind it do not wait
  double reorder_ms = 5;  // how late
  double duplicate = 0;
  double corrupt = 0;      // one random bit behind the IP header is flipped
  double queue_kbyte = 0;  // before the bottleneck, in 1000 bytes; 0: QueueBytes chooses
  bool cut = false;        // nothing passes
};

// Bytes that wait before the bottleneck at most: what `queue_kbyte` says, else 100 ms at the rate,
// as routers have it, and not less than 64 kB, so that a slow link still takes one burst of TCP.
int64_t QueueBytes(const Shape& shape);

// Sets one field of a shape by its name, as in "loss" and "0.01". InvalidArgumentError names the
// field, the value and what is allowed.
absl::Status SetField(absl::string_view name, absl::string_view value, Shape* shape);

enum class Outcome { kPass, kCut, kQueueFull, kLost };

// What becomes of one packet.
struct Verdict {
  Outcome outcome = Outcome::kPass;
  int64_t release_ns = 0;    // when it arrives, if it passes
  bool reordered = false;    // it comes behind packets that were offered after it
  bool duplicate = false;    // a second copy arrives at the same time
  int64_t corrupt_bit = -1;  // which bit of the packet to flip; -1 for none
};

class Shaper {
 public:
  explicit Shaper(uint64_t seed) : random_(seed) {}

  // Changes the settings for the packets that are offered from now on.
  void Set(const Shape& shape) { shape_ = shape; }
  const Shape& shape() const { return shape_; }

  // Decides about a packet of so many bytes that enters the link now. Calls come with a clock that
  // never goes back.
  Verdict Offer(int64_t now_ns, int64_t packet_bytes);

 private:
  // Whether something of this probability happens. Draws nothing where it cannot, so that a setting
  // that is off does not change what the others draw.
  bool Happens(double probability);
  double Uniform();

  Shape shape_;
  std::mt19937_64 random_;
  int64_t link_free_ns_ = 0;     // when the bottleneck has sent all it holds
  int64_t last_release_ns_ = 0;  // keeps the order where jitter would break it
};

}  // namespace isthmus::wan
