// Serves isthmus.v1.MonitorService for a coordinator, beside CoordinatorService on the same ports.
//
//   MonitorServer monitor(coordinator);             // outlived by nothing that uses it:
//   options.more.push_back(monitor.added());        // the GrpcServer goes first
//
// Every answer is made from a copy of the coordinator's state, outside of its lock. gRPC stays in
// the .cc. Thread-safe.
#pragma once

#include <memory>

#include "server/run_finder.h"
#include "transport/service.h"

namespace isthmus {

class MonitorServer {
 public:
  // `runs` outlive it.
  explicit MonitorServer(RunFinder* runs);
  ~MonitorServer();

  AddedService added();

 private:
  class Service;
  std::unique_ptr<Service> service_;
};

}  // namespace isthmus
