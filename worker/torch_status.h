// LibTorch reports errors by exceptions; ours stay inside the module that called it.
#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace isthmus {

// The message of an exception without the C++ stack that c10 appends.
inline std::string TorchMessage(const std::exception& error) {
  if (const auto* torch_error = dynamic_cast<const c10::Error*>(&error)) {
    return torch_error->what_without_backtrace();
  }
  return error.what();
}

// Runs `body`, which returns a Status, and turns an exception into INTERNAL: "<what>: <message>".
template <typename Body>
absl::Status CatchTorch(const char* what, Body&& body) {
  try {
    return body();
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat(what, ": ", TorchMessage(error)));
  }
}

}  // namespace isthmus
