// Text that came from somewhere else, made fit to be sent on, logged and shown.
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace isthmus {

// The beginning of `text` in at most `bytes_max` bytes of valid UTF-8, cut between characters. What
// is not UTF-8 becomes '?', and control characters (line ends, escapes of terminals) become spaces,
// so that a sentence of a peer stays one line and protobuf takes it as a string.
std::string OneLine(absl::string_view text, size_t bytes_max);

// Whether all of `text` is UTF-8 (RFC 3629): protobuf takes no other strings.
bool IsUtf8(absl::string_view text);

// Whether `pattern` matches all of `name`; '*' stands for any characters, none included, everything
// else for itself. Time: at most the product of the two lengths.
bool MatchesGlob(absl::string_view pattern, absl::string_view name);

}  // namespace isthmus
