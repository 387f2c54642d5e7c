#include "tools/wan/shaper.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace isthmus::wan {
namespace {

constexpr double kQueueSeconds = 0.1;
constexpr int64_t kQueueBytesMin = 64'000;
// A bit of the header would let the kernel drop the packet before any checksum of TCP sees it.
constexpr int64_t kIpHeaderBytes = 20;

struct Field {
  absl::string_view name;
  double Shape::*value;
  double max;
};

// Limits are far above any link between sites and keep the arithmetic in nanoseconds exact.
constexpr Field kFields[] = {
    {"rate_mbit", &Shape::rate_mbit, 1e6},     {"delay_ms", &Shape::delay_ms, 60'000},
    {"jitter_ms", &Shape::jitter_ms, 1e4},     {"loss", &Shape::loss, 1},
    {"reorder", &Shape::reorder, 1},           {"reorder_ms", &Shape::reorder_ms, 1e4},
    {"duplicate", &Shape::duplicate, 1},       {"corrupt", &Shape::corrupt, 1},
    {"queue_kbyte", &Shape::queue_kbyte, 1e5},
};

int64_t Nanoseconds(double milliseconds) { return std::llround(milliseconds * 1e6); }

}  // namespace

int64_t QueueBytes(const Shape& shape) {
  if (shape.queue_kbyte > 0) return std::llround(shape.queue_kbyte * 1000);
  return std::max(kQueueBytesMin, int64_t{std::llround(shape.rate_mbit * 1e6 / 8 * kQueueSeconds)});
}

absl::Status SetField(absl::string_view name, absl::string_view value, Shape* shape) {
  double number = 0;
  if (name == "cut") {
    if (!absl::SimpleAtob(value, &shape->cut)) {
      return absl::InvalidArgumentError(absl::StrCat("cut is '", value, "': say 0 or 1"));
    }
    return absl::OkStatus();
  }
  for (const Field& field : kFields) {
    if (field.name != name) continue;
    if (!absl::SimpleAtod(value, &number) || !(number >= 0 && number <= field.max)) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, " is '", value, "': say a number from 0 to ", field.max));
    }
    shape->*field.value = number;
    return absl::OkStatus();
  }
  std::string known = "cut";
  for (const Field& field : kFields) {
    absl::StrAppend(&known, ", ", field.name);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("a link has no setting '", name, "'; it has ", known));
}

double Shaper::Uniform() {
  return static_cast<double>(random_() >> 11) * 0x1p-53;  // 53 bits: every value is exact
}

bool Shaper::Happens(double probability) { return probability > 0 && Uniform() < probability; }

Verdict Shaper::Offer(int64_t now_ns, int64_t packet_bytes) {
  Verdict verdict;
  if (shape_.cut) {
    verdict.outcome = Outcome::kCut;
    return verdict;
  }
  int64_t sent_ns = now_ns;
  if (shape_.rate_mbit > 0) {
    const double bytes_per_ns = shape_.rate_mbit / 8e3;
    const int64_t begin_ns = std::max(now_ns, link_free_ns_);
    const double waiting_bytes = static_cast<double>(begin_ns - now_ns) * bytes_per_ns;
    if (waiting_bytes + packet_bytes > QueueBytes(shape_)) {
      verdict.outcome = Outcome::kQueueFull;
      return verdict;
    }
    sent_ns = begin_ns + std::llround(packet_bytes / bytes_per_ns);
    link_free_ns_ = sent_ns;
  }
  // A packet is lost behind the bottleneck: it has used the link all the same.
  if (Happens(shape_.loss)) {
    verdict.outcome = Outcome::kLost;
    return verdict;
  }
  verdict.release_ns = sent_ns + Nanoseconds(shape_.delay_ms);
  if (shape_.jitter_ms > 0) verdict.release_ns += Nanoseconds(shape_.jitter_ms * Uniform());
  verdict.release_ns = std::max(verdict.release_ns, last_release_ns_);
  if (Happens(shape_.reorder)) {
    verdict.reordered = true;
    verdict.release_ns += Nanoseconds(shape_.reorder_ms);
  } else {
    last_release_ns_ = verdict.release_ns;
  }
  verdict.duplicate = Happens(shape_.duplicate);
  if (packet_bytes > kIpHeaderBytes && Happens(shape_.corrupt)) {
    const int64_t bits = (packet_bytes - kIpHeaderBytes) * 8;
    verdict.corrupt_bit = kIpHeaderBytes * 8 + static_cast<int64_t>(Uniform() * bits);
  }
  return verdict;
}

}  // namespace isthmus::wan
