#include "worker/snapshot_uploader.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "transport/backoff.h"
#include "transport/errors.h"

namespace isthmus {
namespace {

// How often `stop` is asked while waiting.
constexpr std::chrono::milliseconds kStopPoll(100);
constexpr uint64_t kCutElements = kSnapshotPieceBytesMax / sizeof(float);

bool Overlap(const SectionRange& a, const SectionRange& b) {
  return a.section == b.section && a.begin < b.end && b.begin < a.end;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SnapshotUploader>> SnapshotUploader::Start(
    const Options& options, std::shared_ptr<const SnapshotParts> parts) {
  ClientOptions client_options;
  client_options.address = options.agent;
  ISTHMUS_ASSIGN_OR_RETURN(auto client, Client::Make(client_options));
  std::unique_ptr<SnapshotUploader> uploader(
      new SnapshotUploader(options, std::move(client), std::move(parts)));
  uploader->thread_ = std::thread(&SnapshotUploader::Run, uploader.get());
  return uploader;
}

SnapshotUploader::SnapshotUploader(Options options, std::unique_ptr<Client> client,
                                   std::shared_ptr<const SnapshotParts> parts)
    : options_(std::move(options)),
      client_(std::move(client)),
      parts_(std::move(parts)),
      progress_ms_(clock_.NowMs()) {
  // Always cut in the same way: what is held is whole cuts.
  for (const SnapshotParts::Part& part : parts_->parts) {
    for (uint64_t at = 0; at < part.values.size(); at += kCutElements) {
      const uint64_t end = std::min<uint64_t>(part.values.size(), at + kCutElements);
      cuts_.push_back({{part.section, part.begin + at, part.begin + end}, part.values.data() + at});
    }
  }
}

SnapshotUploader::~SnapshotUploader() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  client_->Cancel();
  thread_.join();
}

void SnapshotUploader::Wait(const std::function<bool()>& stop) {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!up_ && clock_.NowMs() - progress_ms_ < kSnapshotStallMs) {
    lock.unlock();
    const bool stopped = stop != nullptr && stop();
    lock.lock();
    if (stopped) return;
    changed_.wait_for(lock, kStopPoll);
  }
}

void SnapshotUploader::Run() {
  Upload();
  // As much memory as the rank's part of the state.
  cuts_.clear();
  parts_ = nullptr;
  std::lock_guard<std::mutex> lock(mutex_);
  up_ = true;  // or it is not wanted
  changed_.notify_all();
}

// Asks on when all of it is there: until the state counts, a coordinator that starts again may have
// lost it, or found that it is damaged. Then it is not wanted any more.
void SnapshotUploader::Upload() {
  std::vector<SectionRange> own;
  for (const Cut& cut : cuts_) own.push_back(cut.range);
  own = Missing(own, {}, own.size());  // neighbours merged
  Backoff backoff(options_.backoff_seed);
  bool was_up = false;
  for (;;) {
    const absl::Status sent = SendAll(own);
    // An agent that came back knows its ranks when they have joined again.
    const bool again = sent.ok() || IsRetryable(sent) || AsksToJoinAgain(sent);
    std::unique_lock<std::mutex> lock(mutex_);
    if (stopping_) return;
    if (!again) {
      const LogFields fields = {{"round", absl::StrCat(parts_->facts.round())},
                                {"why", std::string(sent.message())}};
      if (!was_up) LogWarning("this rank's part of the snapshot is not taken", fields);
      return;
    }
    if (sent.ok() && !was_up) {
      LogDebug("this rank's part of the snapshot is up",
               {{"round", absl::StrCat(parts_->facts.round())}});
    }
    if (sent.ok()) {
      was_up = up_ = true;
      changed_.notify_all();
      backoff.Reset();
    }
    const int64_t delay_ms =
        sent.ok() ? kRetryAfterMs : backoff.NextDelayMs(std::max<int64_t>(RetryAfterMsOf(sent), 0));
    changed_.wait_for(lock, std::chrono::milliseconds(delay_ms), [this] { return stopping_; });
    if (stopping_) return;
  }
}

// Also with nothing to send a call is made: it says that this rank has nothing.
absl::Status SnapshotUploader::SendAll(const std::vector<SectionRange>& own) {
  size_t done = 0;
  do {
    const size_t end = std::min(own.size(), done + kSnapshotRangesMax);
    ISTHMUS_RETURN_IF_ERROR(SendRanges({own.begin() + done, own.begin() + end}));
    done = end;
  } while (done < own.size());
  return absl::OkStatus();
}

absl::Status SnapshotUploader::SendRanges(const std::vector<SectionRange>& ranges) {
  // The first call sends nothing: it asks.
  ISTHMUS_ASSIGN_OR_RETURN(std::vector<SectionRange> missing, Send(ranges, {}));
  while (!missing.empty()) {
    ISTHMUS_ASSIGN_OR_RETURN(std::vector<SectionRange> left, Send(ranges, missing));
    if (left == missing) {
      return absl::UnavailableError(
          absl::StrCat("nothing is kept of what is sent from element ", left.front().begin, " on"));
    }
    missing = std::move(left);
  }
  return absl::OkStatus();
}

// What is missing after that.
absl::StatusOr<std::vector<SectionRange>> SnapshotUploader::Send(
    const std::vector<SectionRange>& ranges, const std::vector<SectionRange>& missing) {
  v1::UploadSnapshotHeader header;
  header.set_run(parts_->facts.run());
  header.set_rank(options_.rank);
  header.set_incarnation(options_.incarnation());
  *header.mutable_facts() = parts_->facts;
  WriteRanges(ranges, header.mutable_ranges());
  const std::unique_ptr<SnapshotUpload> upload = client_->UploadSnapshot(header);
  size_t next = 0;
  bool open = true;
  for (const Cut& cut : cuts_) {
    while (next < missing.size() &&
           (missing[next].section < cut.range.section ||
            (missing[next].section == cut.range.section && missing[next].end <= cut.range.begin))) {
      ++next;
    }
    if (next == missing.size() || !open) break;
    if (!Overlap(missing[next], cut.range)) continue;
    v1::SnapshotPiece piece;
    piece.set_section(cut.range.section);
    piece.set_begin(cut.range.begin);
    piece.set_data(cut.values, (cut.range.end - cut.range.begin) * sizeof(float));
    open = upload->Send(piece);
    progress_ms_ = clock_.NowMs();
  }
  ISTHMUS_ASSIGN_OR_RETURN(const v1::UploadSnapshotResponse response, upload->Finish());
  return ReadRanges(response.missing(), parts_->facts.sections(), parts_->facts.elements());
}

}  // namespace isthmus
