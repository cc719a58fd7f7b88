// A job that runs: from the moment when its members have the complete cluster to its end.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "control/cluster.h"
#include "control/loss_notices.h"
#include "control/peer.h"

namespace herring::control {

// Tells members who is lost, who has left and who wants to give up, and servers when no worker is
// left. Owns the epoch, which each loss that members are told of counts up, and the notices that
// they are yet to get. On the thread of the rendezvous, which says what happens to whom.
class RunningJob {
 public:
  // `peers` and `cluster` must outlive it.
  RunningJob(transport::EventLoop& loop, const Peers& peers, const Cluster& cluster);

  // A member that is gone now: it died, or said goodbye.
  void lose(const Peer& peer, const std::string& how);
  void leave(const Peer& peer);
  // A member tells everybody to give up.
  void abort(const Peer& author, const Status& why);

 private:
  std::string describe(const Peer& peer) const;
  void tell(std::vector<Loss> losses);
  void note_end(const Peer& gone);

  const Peers& peers_;
  const Cluster& cluster_;
  uint32_t epoch_;      // of which members were told
  uint32_t workers_;    // that are left
  bool ended_ = false;  // servers were told
  LossNotices losses_;
};

}  // namespace herring::control
