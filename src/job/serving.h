// A server with its place in a job: what a dedicated and a colocated one have in common.
#pragma once

#include <cstdint>
#include <memory>

#include "control/member.h"
#include "server/server.h"

namespace herring::job {

class Serving {
 public:
  // Listens where this host meets the rendezvous from, no wider.
  static Result<std::unique_ptr<Serving>> start(const control::Member::Options& member);

  // Registers, and returns when the whole cluster is there. `node`: of a colocated server; kNoNode:
  // it is a dedicated one.
  static constexpr uint32_t kNoNode = ~0u;
  Status join(const control::Member::Options& member, uint32_t node);
  // Serves the cluster. The process has `others` connections beside those of workers to the server,
  // in units of a worker's flows.
  Status attach(size_t others);

  server::Server& server() { return *server_; }
  // Once it has joined, else null.
  control::Member* member() { return member_.get(); }
  // Ends the membership without a goodbye: the others take it for a death.
  void vanish() { member_.reset(); }

 private:
  explicit Serving(std::unique_ptr<server::Server> server) : server_(std::move(server)) {}

  std::unique_ptr<server::Server> server_;
  std::unique_ptr<control::Member> member_;
};

}  // namespace herring::job
