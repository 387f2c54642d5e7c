#include "transport/grpc_status.h"

#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/limits.h"
#include "google/rpc/status.pb.h"

namespace isthmus {
namespace {

constexpr char kTypeUrlPrefix[] = "type.googleapis.com/";

// At most kStatusMessageBytesMax, not ending inside a UTF-8 character.
std::string Shortened(absl::string_view text) {
  constexpr absl::string_view kEllipsis = "...";
  if (text.size() <= kStatusMessageBytesMax) return std::string(text);
  size_t end = kStatusMessageBytesMax - kEllipsis.size();
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return absl::StrCat(text.substr(0, end), kEllipsis);
}

absl::StatusCode CodeOf(const grpc::Status& status) {
  const int code = status.error_code();
  // gRPC passes on whatever number the peer sent.
  if (code < 0 || code > static_cast<int>(absl::StatusCode::kUnauthenticated)) {
    return absl::StatusCode::kUnknown;
  }
  return static_cast<absl::StatusCode>(code);
}

}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  google::rpc::Status details;
  details.set_code(static_cast<int>(status.code()));
  status.ForEachPayload([&details](absl::string_view type_url, const absl::Cord& payload) {
    if (!absl::StartsWith(type_url, kTypeUrlPrefix)) return;
    auto* detail = details.add_details();
    detail->set_type_url(std::string(type_url));
    detail->set_value(std::string(payload));
  });
  const std::string message = Shortened(status.message());
  const auto code = static_cast<grpc::StatusCode>(status.code());
  if (details.details().empty()) return grpc::Status(code, message);
  details.set_message(message);
  return grpc::Status(code, message, details.SerializeAsString());
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  std::string message = status.error_message();
  const absl::StatusCode code = CodeOf(status);
  if (message.empty()) {
    // gRPC answers so when a message does not decode.
    message = code == absl::StatusCode::kInternal
                  ? "the call failed without a text; perhaps a message did not decode because the "
                    "two ends run different versions"
                  : absl::StrCat("the call failed with ", absl::StatusCodeToString(code),
                                 " and without a text");
  }
  absl::Status result(code, message);
  google::rpc::Status details;
  if (status.error_details().empty() || !details.ParseFromString(status.error_details())) {
    return result;
  }
  for (const auto& detail : details.details()) {
    if (!absl::StartsWith(detail.type_url(), kTypeUrlPrefix)) continue;
    result.SetPayload(detail.type_url(), absl::Cord(detail.value()));
  }
  return result;
}

}  // namespace isthmus
