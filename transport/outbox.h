// The submissions of a session that are not settled, and which to send next. No threads, no time:
// the session asks under its mutex.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "isthmus/v1/coordinator.pb.h"
#include "transport/session.h"

namespace isthmus {

class Outbox {
 public:
  using Refused = std::function<void(const absl::Status&)>;

  // Replaces what is there for its round. Not sent when the round is known to be committed: its
  // update is on its way.
  void Put(std::shared_ptr<const Submission> submission, Refused refused);
  // Rounds up to this one are settled.
  void Settle(uint64_t round);

  // What to send now: the lowest round that the server does not hold; it counts as under way until
  // one of the outcomes below is told. One at a time.
  struct Ticket {
    std::shared_ptr<const Submission> submission;
    uint64_t number = 0;  // names the submission, as others may replace it meanwhile
    // What the server held of it when the present watch began; none: nothing, or that was used.
    std::vector<v1::ChunkRange> held;
  };
  std::optional<Ticket> Next();

  // What of a submission is to be sent where the server holds some chunks of it already.
  struct Part {
    std::vector<const std::string*> pieces;
    std::vector<v1::ChunkRange> ranges;  // all of its chunks, where all pieces are sent
  };
  static Part NotHeld(const Ticket& ticket);

  // Outcomes. There was a receipt.
  void Held(const Ticket& ticket);
  // To be sent again.
  void Again(const Ticket& ticket);
  // The round goes on without it. Returns whom to tell, which is nobody the second time, or when
  // the round is committed, perhaps with it (its receipt was lost): the update says. Under another
  // incarnation it is sent again: to a server a node that joined anew has not answered yet.
  Refused Refuse(const Ticket& ticket, uint64_t incarnation);

  // What the answer to a submission means: tells one of the outcomes above, and says what the
  // session does next. `is_current`: it was sent under the incarnation that the session has now.
  struct Verdict {
    enum class Next {
      kGoOn,
      kTryAgainLater,  // after a back-off
      kJoinAgain,
      kEnd,  // the session, with this status
    };
    Next next = Next::kGoOn;
    Refused refused;  // whom to tell; null: nobody
  };
  Verdict Conclude(const Ticket& ticket, uint64_t incarnation, bool is_current,
                   const absl::Status& status);

  // A new watch began and says what the server holds: what it does not hold is sent again.
  void WatchStarted(const v1::WatchStart& start, uint64_t incarnation);

  // The server says that the round is open for this caller. When it had refused its submission (as
  // that of no member, say), it now wants it.
  void Opened(uint64_t round);

  uint64_t resends() const { return resends_; }

 private:
  enum class State { kToSend, kUnderWay, kHeld, kRefused };  // held: or committed
  struct Entry {
    std::shared_ptr<const Submission> submission;
    Refused refused;
    uint64_t number = 0;
    State state = State::kToSend;
    bool sent_before = false;
    // A watch began while it was under way: its answer may be of a server that is gone, or that
    // has admitted us anew since.
    bool unsure = false;
    // The round opened while it was under way: a refusal may be of the time before.
    bool opened = false;
    uint64_t refused_incarnation = 0;
  };

  Entry* Find(const Ticket& ticket);

  std::map<uint64_t, Entry> entries_;  // by round
  uint64_t committed_round_ = 0;       // at the begin of the last watch
  // Incomplete contributions that the server held then, by round. Each is used once: what is sent
  // after that goes whole, whatever became of it there.
  std::map<uint64_t, v1::HeldContribution> held_;
  uint64_t last_number_ = 0;
  uint64_t resends_ = 0;
};

}  // namespace isthmus
