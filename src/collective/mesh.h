// Connections between workers, for algorithms that do without servers: made when a schedule first
// needs them, with the hello that every connection of a job begins with. Of two ranks
// the lower connects. Loop thread only.
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
  std::string host;    // where this worker listens: its own address in this job, no wider
  std::string source;  // the address to connect from; empty: the system's choice
  transport::Credentials credentials;
};

class Mesh {
 public:
  // `user_index` of a flow is the rank at its other end.
  using OnFlow = std::function<void(uint32_t rank)>;
  using OnFailed = std::function<void(uint32_t rank, const Status&)>;
  // This process cannot accept those who connect.
  using OnStarved = std::function<void(const Status&)>;

  Mesh(transport::Transport& transport, transport::EventLoop& loop, MeshOptions options,
       transport::FlowHandler& handler, OnFlow on_flow, OnFailed on_failed,
       OnStarved on_starved);

  // Begins to listen; the address is for the others.
  Result<std::string> listen();
  // Where these ranks are. Nobody is connected to before.
  Status meet(const std::vector<uint32_t>& ranks, const std::vector<std::string>& addresses);
  bool knows(uint32_t rank) const { return addresses_.contains(rank); }

  // Sees to it that there is, or will be, a flow to this rank.
  void want(uint32_t rank);
  // Null while there is none.
  transport::Flow* flow(uint32_t rank);
  // Closes the flow to this rank, if there is one, without a report.
  void close(uint32_t rank);
  // Closes everything, without a report.
  void clear();
  // Sends no more, and closes when the others do; what is queued for a rank goes out before if
  // `writes_queued(rank)`.
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
