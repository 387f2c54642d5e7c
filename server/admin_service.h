// Serves isthmus.v1.AdminService for the runs of a coordinator, beside CoordinatorService on the
// same ports.
//
//   AdminServer admin(runs);                        // outlived by nothing that uses it:
//   options.more.push_back(admin.added());          // the GrpcServer goes first
//
// What it changes is stored before it answers. gRPC stays in the .cc. Thread-safe.
#pragma once

#include <memory>

#include "server/run_finder.h"
#include "transport/service.h"

namespace isthmus {

class AdminServer {
 public:
  // `runs` outlive it.
  explicit AdminServer(RunFinder* runs);
  ~AdminServer();

  AddedService added();

 private:
  class Service;
  std::unique_ptr<Service> service_;
};

}  // namespace isthmus
