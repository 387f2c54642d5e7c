// How a unary call of the callback API is answered at once.
#pragma once

#include <utility>

#include "absl/status/statusor.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"
#include "transport/grpc_status.h"

namespace isthmus {

// Ends the call with the answer, or with its error.
template <typename Response>
grpc::ServerUnaryReactor* AnswerNow(grpc::CallbackServerContext* context,
                                    absl::StatusOr<Response> answer, Response* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (answer.ok()) *response = *std::move(answer);
  reactor->Finish(ToGrpcStatus(answer.status()));
  return reactor;
}

}  // namespace isthmus
