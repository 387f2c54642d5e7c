// One Submit call on the server: reads messages one at a time, checks their order and sizes, and
// hands header, pieces and end to the host. A refusal ends the call at once; what the client has
// still to send is not read.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"
#include "isthmus/v1/coordinator.pb.h"
#include "transport/round_host.h"

namespace isthmus {

// Owns itself: gRPC calls OnDone last.
class SubmitReactor final : public grpc::ServerReadReactor<v1::SubmitRequest> {
 public:
  SubmitReactor(RoundHost* host, grpc::CallbackServerContext* context,
                v1::SubmitResponse* response);

  void OnReadDone(bool ok) override;
  void OnDone() override { delete this; }

 private:
  absl::Status Take(v1::SubmitRequest* request);
  absl::Status TakeHeader(const v1::SubmitHeader& header);
  absl::Status TakePiece(std::string piece);
  absl::Status TakeEnd(const v1::SubmitEnd& end);
  // The client has sent all it wants to.
  absl::Status Complete();

  RoundHost* host_;
  grpc::CallbackServerContext* context_;
  v1::SubmitResponse* response_;
  v1::SubmitRequest request_;

  std::unique_ptr<SubmissionSink> sink_;  // set by the header
  bool abstains_ = false;
  uint64_t payload_bytes_ = 0;   // as the header says
  uint64_t received_bytes_ = 0;  // of pieces so far
  bool ended_ = false;
  v1::SubmitEnd end_;
};

}  // namespace isthmus
