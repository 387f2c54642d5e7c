// PauseRun, ResumeRun: an operator lets no round open, and lets them open again. It is stored
// before it is done, and done before it is answered.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "server/coordinator.h"
#include "server/field_size.h"
#include "transport/errors.h"

namespace isthmus {

absl::StatusOr<v1::PauseRunResponse> Coordinator::PauseRun(const v1::PauseRunRequest& request) {
  ISTHMUS_RETURN_IF_ERROR(CheckRun(request.run()));
  ISTHMUS_RETURN_IF_ERROR(CheckFieldSize("reason", request.reason().size(), 0, kReasonBytesMax));
  const std::string reason = OneLine(request.reason(), kReasonBytesMax);
  ISTHMUS_ASSIGN_OR_RETURN(const uint64_t last_round, SetPause(RunPaused{reason}, true, reason));
  v1::PauseRunResponse response;
  response.set_last_round(last_round);
  return response;
}

absl::StatusOr<v1::ResumeRunResponse> Coordinator::ResumeRun(const v1::ResumeRunRequest& request) {
  ISTHMUS_RETURN_IF_ERROR(CheckRun(request.run()));
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (machine_.disputed() && !machine_.paused()) {
      return WithReason(absl::FailedPreconditionError(
                            absl::StrCat("no operator has paused the run: ", DisputeTextLocked())),
                        "STATES_DISPUTED");
    }
  }
  ISTHMUS_RETURN_IF_ERROR(SetPause(RunUnpaused(), false, "").status());
  return v1::ResumeRunResponse();
}

// The last round that goes on for all that; 0: none is open.
absl::StatusOr<uint64_t> Coordinator::SetPause(const RoundEvent& event, bool paused,
                                               const std::string& reason) {
  const DeliverAfter deliver(this);
  std::lock_guard<std::mutex> admission_lock(admission_mutex_);
  std::unique_lock<std::mutex> lock(mutex_);
  ISTHMUS_RETURN_IF_ERROR(CheckServingLocked());
  if (machine_.finished()) {
    return WithReason(
        absl::FailedPreconditionError(absl::StrCat(
            "run '", spec_.run(), "' is finished: no round opens any more, paused or not")),
        "RUN_FINISHED");
  }
  StoreBatch batch;
  batch.run = StoredRunOf(model_, heldout_sha256_);
  batch.run->set_paused(paused);
  batch.run->set_pause_reason(reason);
  // Persist. Under the lock, so that no round opens between the write and the deed.
  const absl::Status stored = WriteStore(batch);
  if (!stored.ok()) {
    lock.unlock();
    return CannotStore(stored);
  }
  LogInfo(paused ? "an operator pauses the run" : "an operator lets the run go on",
          {{"run", spec_.run()}, {"reason", reason}});
  const uint64_t last_round = machine_.newest_round();
  StepLocked(event);
  return last_round;
}

}  // namespace isthmus
