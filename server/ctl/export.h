// isthmusctl checkpoint export: a snapshot as a file that people can load.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "isthmus/v1/coordinator.pb.h"
#include "transport/client.h"

namespace isthmus {

struct ExportOptions {
  std::string run;                 // empty: the one that the coordinator has
  absl::optional<uint64_t> round;  // absent: the newest snapshot
  std::string path;                // of the file; one that is there is replaced when it is whole
  std::function<void(uint64_t bytes, uint64_t of)> progress;  // of the download; may be null
};

// Writes the parameters of a snapshot, under the names of the run's manifest, as safetensors;
// round, step and hashes are its metadata. The whole state is fetched, also what is not written,
// because only the whole can be checked against its hash. Returns its facts.
//   DATA_LOSS   what came does not have the hash that was announced; no file is left
absl::StatusOr<v1::SnapshotFacts> ExportSnapshot(Client* client, const ExportOptions& options);

}  // namespace isthmus
