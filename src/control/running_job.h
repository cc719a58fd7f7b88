// A running job: from the moment when its members have the complete cluster to its end.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "control/cluster.h"
#include "control/loss_notices.h"
#include "control/peer.h"

namespace herring::control {

// Tells members who is lost, who has left and who wants to give up, and tells servers when no
// worker is left. Owns the epoch, which grows with each loss that members are told of, and the
// notices that members have yet to get. Runs on the thread of the rendezvous, which reports what
// happens to whom.
class RunningJob {
 public:
  // `peers` and `cluster` must outlive the RunningJob.
  RunningJob(transport::EventLoop& loop, const Peers& peers, const Cluster& cluster);

  // A member is gone: it died (lose) or said goodbye (leave).
  void lose(const Peer& peer, const std::string& how);
  void leave(const Peer& peer);
  // A member tells all processes to give up.
  void abort(const Peer& author, const Status& why);

 private:
  std::string describe(const Peer& peer) const;
  void tell(std::vector<Loss> losses);
  void note_end(const Peer& gone);

  const Peers& peers_;
  const Cluster& cluster_;
  uint32_t epoch_;      // the epoch that members were told
  uint32_t workers_;    // number of workers left
  bool ended_ = false;  // servers were told that the job has ended
  LossNotices losses_;
};

}  // namespace herring::control
