// A server with its place in a job: what dedicated and colocated servers have in common.
#pragma once

#include <cstdint>
#include <memory>

#include "control/member.h"
#include "job/reporter.h"
#include "job/server_reports.h"
#include "server/server.h"
#include "transport/transport.h"

namespace herring::job {

class Serving {
 public:
  // Listens only on the address from which this host reaches the rendezvous.
  static Result<std::unique_ptr<Serving>> start(const control::Member::Options& member,
                                                transport::Transport& transport);

  // Registers the server and returns when the whole cluster is there. `node` is the node of a
  // colocated server, or kNoNode for a dedicated one.
  static constexpr uint32_t kNoNode = ~0u;
  // A dedicated server may ask for a number (ServerRegistration::wanted).
  Status join(const control::Member::Options& member, uint32_t node, uint32_t wanted = ~0u);
  // Starts serving the cluster. `others` is the number of the process's other connections, besides
  // those from workers to the server, in units of a worker's flows.
  Status attach(size_t others);

  server::Server& server() { return *server_; }
  // Returns null before the server has joined.
  control::Member* member() { return member_.get(); }
  // Sends no reports any more. Must be called before the membership or the server ends.
  void end_reports() { reporter_.reset(); }
  // Ends the membership without a goodbye, so that the others count the server as dead.
  void vanish() {
    end_reports();
    member_.reset();
  }

 private:
  explicit Serving(std::unique_ptr<server::Server> server) : server_(std::move(server)) {}

  std::unique_ptr<server::Server> server_;
  std::unique_ptr<ServerReports> reports_;
  std::unique_ptr<control::Member> member_;
  std::unique_ptr<Reporter> reporter_;  // null if the job is not observed
};

}  // namespace herring::job
