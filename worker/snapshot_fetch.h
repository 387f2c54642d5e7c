// One download of a snapshot, over as many calls as it takes: what has come is not asked for again.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "isthmus/v1/coordinator.pb.h"
#include "spec/section_ranges.h"
#include "transport/client.h"

namespace isthmus {

class SnapshotFetch {
 public:
  using OnPiece = std::function<absl::Status(const v1::SnapshotPiece&)>;
  // `ranges`: ascending and disjoint; none: only the facts. `client` outlives it.
  SnapshotFetch(Client* client, std::optional<uint64_t> round, std::vector<SectionRange> ranges,
                OnPiece on_piece);

  // One try for all that is left. `tell`: what it does, in a sentence, now and then. DATA_LOSS: the
  // server sent what was not asked for. An error of on_piece ends it.
  absl::Status Try(const std::function<void(const std::string&)>& tell);
  // After a try that was OK.
  const v1::SnapshotFacts& facts() const { return facts_; }

 private:
  absl::Status Call(const std::vector<SectionRange>& ranges,
                    const std::function<void(const std::string&)>& tell);
  absl::Status Take(const v1::FetchSnapshotResponse& message);

  Client* const client_;
  std::optional<uint64_t> round_;
  const std::vector<SectionRange> ranges_;
  const OnPiece on_piece_;
  bool knows_facts_ = false;
  v1::SnapshotFacts facts_;
  std::vector<SectionRange> held_;  // ascending
  uint64_t held_elements_ = 0, wanted_elements_ = 0;
};

}  // namespace isthmus
