// Pass a non-OK status on to the caller.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define ISTHMUS_CONCAT_INNER(a, b) a##b
#define ISTHMUS_CONCAT(a, b) ISTHMUS_CONCAT_INNER(a, b)

// ISTHMUS_RETURN_IF_ERROR(expression yielding absl::Status);
#define ISTHMUS_RETURN_IF_ERROR(expression)                                                      \
  do {                                                                                           \
    if (absl::Status isthmus_status = (expression); !isthmus_status.ok()) return isthmus_status; \
  } while (false)

// ISTHMUS_ASSIGN_OR_RETURN(auto value, expression yielding absl::StatusOr<T>);
#define ISTHMUS_ASSIGN_OR_RETURN(declaration, expression) \
  ISTHMUS_ASSIGN_OR_RETURN_INNER(ISTHMUS_CONCAT(isthmus_or_, __LINE__), declaration, expression)
#define ISTHMUS_ASSIGN_OR_RETURN_INNER(temporary, declaration, expression) \
  auto temporary = (expression);                                           \
  if (!temporary.ok()) return std::move(temporary).status();               \
  declaration = std::move(temporary).value()
