// The answer to a field that is too short or too long.
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "transport/errors.h"

namespace isthmus {

// INVALID_ARGUMENT, naming the field, where `bytes` is not within [least, most].
inline absl::Status CheckFieldSize(absl::string_view field, size_t bytes, size_t least,
                                   size_t most) {
  if (bytes >= least && bytes <= most) return absl::OkStatus();
  return WithReason(absl::InvalidArgumentError(absl::StrCat(
                        field, " has ", bytes, " bytes; it has ",
                        least == most ? absl::StrCat(least) : absl::StrCat(least, " to ", most))),
                    "WRONG_SIZE");
}

}  // namespace isthmus
