// How the checks of a RunSpec say what is wrong with it.
#pragma once

#include <initializer_list>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "google/protobuf/generated_enum_reflection.h"

namespace isthmus {

// INVALID_ARGUMENT: "steps is 0; give the number of rounds".
template <typename T>
absl::Status Refuse(absl::string_view field, const T& value, absl::string_view advice) {
  return absl::InvalidArgumentError(absl::StrCat(field, " is ", value, "; ", advice));
}

// "A, B or C", with the whole names, which are what a spec's text has to say.
template <typename Enum>
std::string AnyOf(std::initializer_list<Enum> values) {
  std::string names;
  size_t left = values.size();
  for (const Enum value : values) {
    const auto& descriptor = *google::protobuf::GetEnumDescriptor<Enum>();
    absl::StrAppend(&names, descriptor.FindValueByNumber(value)->name(),
                    left > 2    ? ", "
                    : left == 2 ? " or "
                                : "");
    --left;
  }
  return names;
}

// All that checks which do not build on each other found, in one error with the code of the first:
// who writes a spec need not ask again for each.
inline absl::Status Together(absl::Span<const absl::Status> checks) {
  absl::StatusCode code = absl::StatusCode::kOk;
  std::string text;
  for (const absl::Status& check : checks) {
    if (check.ok()) continue;
    if (text.empty()) code = check.code();
    absl::StrAppend(&text, text.empty() ? "" : ". Also: ", check.message());
  }
  return absl::Status(code, text);
}

}  // namespace isthmus
