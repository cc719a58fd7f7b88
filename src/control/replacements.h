// Servers that come while a job runs: each takes the place of a dedicated server that is lost, or
// waits as a spare until a place is free.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>

#include "control/cluster.h"
#include "control/messages.h"
#include "control/peer.h"

namespace herring::control {

// A replacement comes in two phases. It gets the cluster, and all workers connect to it. Once it is
// ready and all of them can reach it, it serves. If a worker cannot reach it in time, or if it dies
// meanwhile, it is dropped, and the job goes on without it. Runs on the thread of the rendezvous.
class Replacements {
 public:
  struct Job {
    // Returns whether the dedicated server of this index is lost.
    std::function<bool(uint32_t)> is_free;
    // Sends a replacement the cluster as it is now; the replacement has the peer's index.
    std::function<void(Peer&)> describe;
    std::function<void(Peer&, const Replacement&)> serves;
    // Ends a process that is of no use, and tells it why.
    std::function<void(Peer&, const Status& why)> refuse;
  };
  // `peers` and `cluster` must outlive this object. `patience`: how long workers may take to
  // connect.
  Replacements(transport::EventLoop& loop, const Peers& peers, const Cluster& cluster,
               Nanos patience, Job job);

  // Handles a dedicated server that has registered.
  void offer(Peer& peer);
  // Handles a place that is free.
  void fill();
  // Returns whether this process is a replacement that does not serve yet.
  bool comes(const Peer& peer) const;
  // Handles a replacement that is gone before it serves.
  void lose(const Peer& peer, const std::string& how);
  void worker_gone(uint32_t rank);
  // Handles what a worker says about the replacement, or the replacement itself. Returns false if
  // no such replacement comes.
  bool report(const Peer& from, const ServerReport& report);
  // All workers are gone.
  void end();

 private:
  struct Coming {
    Peer* peer;
    Replacement news;
    std::set<uint32_t> awaited;  // ranks that are not ready, and kItself
    transport::EventLoop::TimerId timer;
  };
  static constexpr uint32_t kItself = ~0u;

  void begin(uint32_t server, Peer& peer);
  void advance(uint32_t server);
  void drop(uint32_t server, const std::string& why, bool lives);
  void tell_workers(const Replacement& news);

  transport::EventLoop& loop_;
  const Peers& peers_;
  const Cluster& cluster_;
  const Nanos patience_;
  const Job job_;
  std::map<uint32_t, Coming> coming_;  // by the server that they replace
  uint32_t count_ = 0;                 // replacements that have come
};

}  // namespace herring::control
