// Serves isthmus.v1.AdminService for a coordinator, beside CoordinatorService on the same ports.
//
//   AdminServer admin(coordinator);                 // outlived by nothing that uses it:
//   options.more.push_back(admin.added());          // the GrpcServer goes first
//
// What it changes is stored before it answers. gRPC stays in the .cc. Thread-safe.
#pragma once

#include <memory>

#include "server/coordinator.h"
#include "transport/service.h"

namespace isthmus {

class AdminServer {
 public:
  // The coordinator outlives it.
  explicit AdminServer(Coordinator* coordinator);
  ~AdminServer();

  AddedService added();

 private:
  class Service;
  std::unique_ptr<Service> service_;
};

}  // namespace isthmus
