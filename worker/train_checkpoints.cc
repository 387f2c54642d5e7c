#include "worker/train_checkpoints.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "base/check.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/whole_file.h"

namespace isthmus {
namespace {

constexpr char kRoundPrefix[] = "round-";
constexpr char kRankPrefix[] = "rank-";
constexpr char kSuffix[] = ".safetensors";

// Names in a folder; none where it cannot be read.
std::vector<std::string> NamesIn(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  return names;
}

// The round that a folder's name says.
std::optional<uint64_t> RoundOf(absl::string_view name) {
  uint64_t round = 0;
  if (!absl::ConsumePrefix(&name, kRoundPrefix) || !absl::SimpleAtoi(name, &round)) {
    return std::nullopt;
  }
  return round;
}

// The number of ranks that a file's name says.
std::optional<uint32_t> RanksOf(absl::string_view name) {
  uint32_t ranks = 0;
  if (!absl::ConsumePrefix(&name, kRankPrefix) || !absl::ConsumeSuffix(&name, kSuffix)) {
    return std::nullopt;
  }
  const size_t of = name.find("-of-");
  if (of == absl::string_view::npos || !absl::SimpleAtoi(name.substr(of + 4), &ranks)) {
    return std::nullopt;
  }
  return ranks;
}

bool Exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

std::vector<uint64_t> RoundsIn(const std::string& folder) {
  std::vector<uint64_t> rounds;
  for (const std::string& name : NamesIn(folder)) {
    if (const auto round = RoundOf(name); round.has_value()) rounds.push_back(*round);
  }
  std::sort(rounds.begin(), rounds.end(), std::greater<>());
  return rounds;
}

}  // namespace

absl::Status CheckCheckpointFolder(const std::string& folder) {
  std::error_code ignored;
  if (std::filesystem::is_directory(folder, ignored)) {
    if (access(folder.c_str(), W_OK | X_OK) == 0) return absl::OkStatus();
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot write checkpoints to '", folder, "'"));
  }
  if (std::filesystem::exists(folder, ignored)) {
    return absl::ErrnoToStatus(ENOTDIR, absl::StrCat("cannot write checkpoints to '", folder, "'"));
  }
  return CheckCanWrite(std::string(absl::StripSuffix(folder, "/")));
}

absl::StatusOr<std::unique_ptr<TrainCheckpoints>> TrainCheckpoints::Open(const std::string& folder,
                                                                         uint32_t rank,
                                                                         uint32_t ranks) {
  if (mkdir(folder.c_str(), 0777) != 0 && errno != EEXIST) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot create the folder '", folder, "'"));
  }
  auto checkpoints = std::unique_ptr<TrainCheckpoints>(
      new TrainCheckpoints(std::string(absl::StripSuffix(folder, "/")), rank, ranks));
  ISTHMUS_RETURN_IF_ERROR(checkpoints->CheckRanks());
  for (const uint64_t round : RoundsIn(checkpoints->folder_)) {
    unlink(absl::StrCat(checkpoints->PathOf(round), ".part").c_str());
  }
  return checkpoints;
}

TrainCheckpoints::~TrainCheckpoints() { Wait(); }

std::string TrainCheckpoints::FolderOf(uint64_t round) const {
  return absl::StrFormat("%s/%s%010u", folder_, kRoundPrefix, round);
}

std::string TrainCheckpoints::PathOf(uint64_t round, uint32_t rank, uint32_t ranks) const {
  return absl::StrCat(FolderOf(round), "/", kRankPrefix, rank, "-of-", ranks, kSuffix);
}

std::vector<std::string> TrainCheckpoints::PathsOf(uint64_t round) const {
  if (Exists(PathOf(round))) return {PathOf(round)};
  for (const uint32_t ranks : OtherRanks(round)) {
    std::vector<std::string> paths;
    for (uint32_t rank = 0; rank < ranks; ++rank) paths.push_back(PathOf(round, rank, ranks));
    if (std::all_of(paths.begin(), paths.end(), Exists)) return paths;
  }
  return {};
}

std::set<uint32_t> TrainCheckpoints::OtherRanks(uint64_t round) const {
  std::set<uint32_t> others;
  for (const std::string& name : NamesIn(FolderOf(round))) {
    const auto ranks = RanksOf(name);
    if (ranks.has_value() && *ranks != ranks_ && *ranks <= kRanksMax) others.insert(*ranks);
  }
  return others;
}

absl::Status TrainCheckpoints::CheckRanks() const {
  if (!Rounds().empty()) return absl::OkStatus();
  for (const uint64_t round : RoundsIn(folder_)) {
    const std::set<uint32_t> others = OtherRanks(round);
    if (others.empty()) continue;
    const uint32_t ranks = *others.begin();
    uint32_t lacking = 0;
    while (Exists(PathOf(round, lacking, ranks))) ++lacking;
    return absl::FailedPreconditionError(absl::StrCat(
        "the checkpoint of round ", round, " in '", folder_, "' was made by ", ranks,
        " ranks, this node has ", ranks_, ", and the file of rank ", lacking,
        " is not there; copy all files of the set into one folder that all ranks see, start ",
        ranks, " ranks, or name another --checkpoint_dir and begin anew"));
  }
  return absl::OkStatus();
}

std::vector<uint64_t> TrainCheckpoints::Rounds() const {
  std::vector<uint64_t> rounds = RoundsIn(folder_);
  const auto lacks = [this](uint64_t round) { return PathsOf(round).empty(); };
  rounds.erase(std::remove_if(rounds.begin(), rounds.end(), lacks), rounds.end());
  return rounds;
}

void TrainCheckpoints::Resume(uint64_t round) {
  newest_ = round;
  for (const uint64_t newer : Rounds()) {
    if (newer <= round) continue;
    LogInfo("an incomplete checkpoint goes", {{"round", absl::StrCat(newer)}, {"folder", folder_}});
    Remove(newer);
  }
}

void TrainCheckpoints::SetAside(uint64_t round) {
  for (const std::string& path : PathsOf(round)) {
    std::rename(path.c_str(), absl::StrCat(path, ".damaged").c_str());
  }
}

void TrainCheckpoints::Remove(uint64_t round) const {
  unlink(PathOf(round).c_str());
  for (const uint32_t ranks : OtherRanks(round)) {
    if (rank_ > 0) break;  // one is enough
    for (uint32_t rank = 0; rank < ranks; ++rank) unlink(PathOf(round, rank, ranks).c_str());
  }
  rmdir(FolderOf(round).c_str());  // the last rank's call succeeds
}

absl::Status TrainCheckpoints::MakeFolder(uint64_t round) const {
  const std::string folder = FolderOf(round);
  if (mkdir(folder.c_str(), 0777) != 0 && errno != EEXIST) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot create the folder '", folder, "'"));
  }
  return SyncFolderOf(folder);
}

void TrainCheckpoints::Write(TrainState state) {
  ISTHMUS_CHECK(!writing_);
  Wait();
  writing_ = true;
  writer_ = std::thread([this, state = std::move(state)] {
    const uint64_t round = state.facts.round;
    absl::Status written = MakeFolder(round);
    if (written.ok()) written = WriteTrainState(PathOf(round), state);
    if (written.ok()) {
      newest_ = round;
    } else {
      LogError("no checkpoint was written, the last one stays; make room or mend the folder",
               {{"round", absl::StrCat(round)}, {"why", std::string(written.message())}});
    }
    writing_ = false;
  });
}

void TrainCheckpoints::Wait() {
  if (writer_.joinable()) writer_.join();
}

void TrainCheckpoints::KeepFrom(uint64_t round) {
  int kept = 0;
  for (const uint64_t held : Rounds()) {
    if (held > round || kept++ < kCheckpointsKept) continue;
    Remove(held);
  }
}

}  // namespace isthmus
