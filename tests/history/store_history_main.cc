// Prints what a state folder holds as events of a history (tests/history/json_lines.h), one line a
// committed round: what tests with real processes join with what the agents' logs say.
//
//   store_history DIR      of a coordinator that has ended
//
// Exits with 1 when the folder cannot be read, or does not hold all rounds.
#include <cstdint>
#include <cstdio>
#include <string>

#include "server/rocks_store.h"
#include "tests/history/json_lines.h"

namespace isthmus {
namespace {

constexpr uint64_t kBytesAtOnce = uint64_t{16} << 20;

absl::Status PrintAll(const std::string& dir) {
  auto opened = OpenRocksStore({dir, StoreLimits()});
  if (!opened.ok()) return opened.status();
  const Store& store = **opened;
  for (uint64_t last = 0; last < store.last_round();) {
    const auto updates = store.ReadAfter(last, kBytesAtOnce);
    if (!updates.ok()) return updates.status();
    for (const StoredUpdatePtr& update : *updates) {
      Event event;
      event.kind = EventKind::kDurable;
      event.round = last = update->record.round();
      event.record = std::make_shared<v1::UpdateRecord>(update->record);
      Event published;
      published.kind = EventKind::kPublished;
      published.round = last;
      published.sha256 = update->record.sha256();
      std::printf("%s\n%s\n", WriteLine(event).c_str(), WriteLine(published).c_str());
    }
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace isthmus

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: store_history DIR\n");
    return 2;
  }
  const absl::Status status = isthmus::PrintAll(argv[1]);
  if (status.ok()) return 0;
  std::fprintf(stderr, "store_history: %s\n", std::string(status.message()).c_str());
  return 1;
}
