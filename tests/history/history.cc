#include "tests/history/history.h"

#include "absl/strings/str_cat.h"
#include "base/sha256.h"

namespace isthmus {
namespace {

const char* Word(EventKind kind) {
  switch (kind) {
    case EventKind::kRestored:
      return "restored";
    case EventKind::kComputed:
      return "computed";
    case EventKind::kReceipt:
      return "receipt";
    case EventKind::kReceived:
      return "received";
    case EventKind::kSettled:
      return "settled";
    case EventKind::kApplied:
      return "applied";
    case EventKind::kDurable:
      return "durable";
    case EventKind::kPublished:
      return "published";
  }
  return "unknown";
}

const char* Word(Outcome outcome) {
  switch (outcome) {
    case Outcome::kNone:
      return "";
    case Outcome::kIncluded:
      return " included";
    case Outcome::kLeftOut:
      return " left_out";
    case Outcome::kDropped:
      return " dropped";
  }
  return " unknown";
}

}  // namespace

std::string Describe(const Event& event) {
  std::string line = absl::StrCat(event.node.empty() ? "coordinator" : event.node, ": ",
                                  Word(event.kind), Word(event.outcome), " round ", event.round);
  if (event.life != 0) absl::StrAppend(&line, " life ", event.life);
  if (!event.digest.empty()) absl::StrAppend(&line, " digest ", HexPrefix(event.digest));
  if (!event.sha256.empty()) absl::StrAppend(&line, " record ", HexPrefix(event.sha256));
  if (!event.state.empty()) absl::StrAppend(&line, " state ", HexPrefix(event.state));
  if (event.record == nullptr) return line;
  absl::StrAppend(&line, event.record->is_void() ? " void" : "", " record ",
                  HexPrefix(event.record->sha256()), " of");
  for (const v1::IncludedContribution& one : event.record->included()) {
    absl::StrAppend(&line, " ", one.node(), "/", HexPrefix(one.digest()));
  }
  return line;
}

}  // namespace isthmus
