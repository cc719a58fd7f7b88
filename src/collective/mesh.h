// Connections between workers, for algorithms without servers. A connection is made when a schedule
// first needs it, and begins with the hello of all connections of a job. The lower of two ranks
// connects. Loop thread only.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "transport/transport.h"

namespace herring::collective {

struct MeshOptions {
  uint32_t rank = 0, size = 1, incarnation = 0;
  std::string host;    // where this worker listens: its own address in this job, not a wider one
  std::string source;  // the address to connect from; empty means the system's choice
  transport::Credentials credentials;
};

class Mesh {
 public:
  // Reports a new flow. Its `user_index` is the rank at the other end.
  using OnFlow = std::function<void(uint32_t rank)>;
  using OnFailed = std::function<void(uint32_t rank, const Status&)>;
  // Called when this process cannot accept incoming connections.
  using OnStarved = std::function<void(const Status&)>;

  Mesh(transport::Transport& transport, transport::EventLoop& loop, MeshOptions options,
       transport::FlowHandler& handler, OnFlow on_flow, OnFailed on_failed,
       OnStarved on_starved);

  // Starts to listen. Returns the address for the other ranks.
  Result<std::string> listen();
  // Sets the addresses of these ranks. No connection to them is made before.
  Status meet(const std::vector<uint32_t>& ranks, const std::vector<std::string>& addresses);
  bool knows(uint32_t rank) const { return addresses_.contains(rank); }

  // Makes sure that there is, or will be, a flow to this rank.
  void want(uint32_t rank);
  // Returns null while there is no flow to this rank.
  transport::Flow* flow(uint32_t rank);
  // Closes the flow to this rank, if there is one, without reporting it.
  void close(uint32_t rank);
  // Closes everything without reporting it.
  void clear();
  // Stops sending, and closes when the other side does. Data queued for a rank is sent before if
  // `writes_queued(rank)` returns true.
  void finish(const std::function<bool(uint32_t rank)>& writes_queued);
  size_t undelivered() const;

  transport::FlowCounters counters() const;

 private:
  void adopt(uint32_t rank, transport::Connection& connection);

  transport::Transport& transport_;
  transport::EventLoop& loop_;
  const MeshOptions options_;
  transport::FlowHandler& handler_;
  const OnFlow on_flow_;
  const OnFailed on_failed_;
  const OnStarved on_starved_;
  std::unique_ptr<transport::Listener> listener_;
  std::map<uint32_t, transport::Address> addresses_;
  std::map<uint32_t, std::unique_ptr<transport::Connecting>> connecting_;
  std::map<uint32_t, std::unique_ptr<transport::Flow>> flows_;
};

}  // namespace herring::collective
