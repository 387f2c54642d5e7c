// Histories as files: one JSON object a line, so that processes in any language can write them and
// logs can be joined by sorting. Hashes and bytes are hexadecimal.
//
//   {"event":"restored","node":"fra-1","life":1,"round":0,"state":"9f..."}
//   {"event":"computed","node":"fra-1","life":1,"round":1,"digest":"5c..."}
//   {"event":"receipt","node":"fra-1","round":1,"digest":"5c..."}
//   {"event":"durable","round":1,"sha256":"e3...","previous_sha256":"","void":false,
//    "included":[{"node":"fra-1","digest":"5c..."}]}
//   {"event":"published","round":1,"sha256":"e3..."}
//   {"event":"received", ...}      as durable, with node and life
//   {"event":"settled","node":"fra-1","life":1,"round":1,"digest":"5c...","outcome":"included"}
//   {"event":"applied","node":"fra-1","life":1,"round":1,"sha256":"e3...","state":"77..."}
//
// Outcomes: included, left_out, dropped. `durable` and `received` may have "record", the record as
// it is on the wire, in place of its parts; "pieces", a list, is optional with all that have any.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tests/history/history.h"

namespace isthmus {

// Without the line end. With whole records, and the pieces that are there.
std::string WriteLine(const Event& event);
// INVALID_ARGUMENT: says what is wrong with it. Fields that are not known are ignored.
absl::StatusOr<Event> ReadLine(absl::string_view line);
// All lines of a file; empty ones are skipped. INVALID_ARGUMENT names file and line.
absl::StatusOr<History> ReadHistory(const std::string& path);

}  // namespace isthmus
