// LibTorch reports errors by exceptions; ours stay inside the module that called it.
#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace isthmus {

// The message of an exception without the C++ stack that c10 appends and without the place in the
// source, "[file:line] ", that Gloo puts in front.
inline std::string TorchMessage(const std::exception& error) {
  std::string message = error.what();
  if (const auto* torch_error = dynamic_cast<const c10::Error*>(&error)) {
    message = torch_error->what_without_backtrace();
  }
  const size_t place_end = message.find("] ");
  if (message.rfind('[', 0) == 0 && place_end != std::string::npos) {
    message.erase(0, place_end + 2);
  }
  return message;
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
