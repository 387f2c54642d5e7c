// What an agent keeps on disk: its secret, and which contributions it sent last. With both, an
// agent that was killed and started again takes its node over at once and still knows whether an
// update holds the node's own contribution.
//
//   lock          held (flock) while the process lives
//   secret        32 random bytes, mode 0600
//   contribution  a line each, newest first: round, attempt and digest (hexadecimal)
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace isthmus {

// A contribution that was sent upstream; round 0: none.
struct SentContribution {
  uint64_t round = 0;
  uint64_t attempt = 0;
  std::string digest;
};

class StateFolder {
 public:
  // Creates the folder (not its parents), locks it, reads or makes the files. An empty path: all of
  // it in memory only, with a fresh secret.
  // FAILED_PRECONDITION: in use by another process. DATA_LOSS: a file that is not what it should
  // be. PERMISSION_DENIED, NOT_FOUND, INTERNAL: as the system says, naming the file.
  static absl::StatusOr<std::unique_ptr<StateFolder>> Open(const std::string& path);
  ~StateFolder();
  StateFolder(const StateFolder&) = delete;
  StateFolder& operator=(const StateFolder&) = delete;

  // Whether it outlives this process.
  bool durable() const { return lock_fd_ >= 0; }
  const std::string& secret() const { return secret_; }
  // What was sent for the round: one of the last 1 + kOverlapMax; else round 0.
  SentContribution SentFor(uint64_t round) const;
  // Call it before the contribution's first byte leaves.
  absl::Status SaveSent(const SentContribution& sent);

 private:
  explicit StateFolder(const std::string& path) : path_(path) {}
  absl::Status Lock();
  absl::Status LoadSecret();
  absl::Status LoadSent();

  std::string path_;
  int lock_fd_ = -1;
  std::string secret_;
  std::deque<SentContribution> sent_;  // newest first
};

}  // namespace isthmus
