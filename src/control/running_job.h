// A running job: from the moment when its members have the complete cluster to its end.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "control/cluster.h"
#include "control/loss_notices.h"
#include "control/peer.h"
#include "control/replacements.h"
#include "control/server_set.h"

namespace herring::control {

// Tells members who is lost, who has left and who wants to give up, and tells servers when no
// worker is left. Owns the epoch, which grows with each change of the membership that members are
// told of, and the notices that members have yet to get. With failover, also owns the set of
// servers that serve: others stand in for a dedicated server that is lost, and another process may
// replace it. Runs on the thread of the rendezvous, which reports what happens to whom.
class RunningJob {
 public:
  struct Options {
    bool failover = false;
    Nanos connect_timeout = 0;  // for replacements
  };
  struct Rendezvous {
    // Gives up a member: it is told why, and the others hear `how` it was lost.
    std::function<void(Peer&, const Status& why, const std::string& how)> give_up;
    // A replacement serves.
    std::function<void(const Peer&)> serves;
  };
  // `peers` and `cluster` must outlive the RunningJob, which keeps the addresses of the cluster's
  // servers up to date.
  RunningJob(transport::EventLoop& loop, const Peers& peers, Cluster& cluster, Options options,
             Rendezvous rendezvous);

  // A member is gone: it died (lose) or said goodbye (leave).
  void lose(const Peer& peer, const std::string& how);
  void leave(const Peer& peer);
  // A member tells all processes to give up.
  void abort(Peer& author, const Status& why);
  // A worker's part of the job has ended, because a deadline has passed. It counts as lost soon if
  // its process stays, and at once if it dies or leaves.
  void end_part(const Peer& worker, const Status& why);
  // Tells all processes to give up, because their calls can never end. `who`: who waits where.
  void deadlocked(const std::string& who);

  // Handles a dedicated server that has registered while the job runs. With failover only.
  void offer(Peer& peer);
  // A member says whether it can reach a server.
  Status on_server_report(const Peer& from, std::string_view payload);
  // Returns whether the job loses little with this process: a replacement that does not serve yet,
  // or a dedicated server for which others can stand in.
  bool can_spare(const Peer& peer) const;
  // Returns whether this process does not take part yet.
  bool comes(const Peer& peer) const { return replacements_.comes(peer); }

 private:
  std::string describe(const Peer& peer) const;
  bool serves(const Peer& peer) const;
  std::string stand_ins() const;
  // Returns why a worker's part of the job has ended, or "".
  std::string part_ended(const Peer& peer) const;
  void tell(std::vector<Loss> losses);
  void add(const Peer& peer, Loss loss);
  void describe_to(Peer& newcomer);
  void begin_to_serve(const Peer& newcomer, const Replacement& news);
  void note_end(const Peer& gone);

  transport::EventLoop& loop_;
  const Peers& peers_;
  Cluster& cluster_;
  const Options options_;
  const Rendezvous rendezvous_;
  uint32_t workers_;    // number of workers left
  bool ended_ = false;  // servers were told that the job has ended
  bool fails_ = false;  // a worker has died, or the job was aborted: servers may end because of it
  ServerSet set_;       // its epoch is the one that members were told
  std::vector<uint32_t> numbers_;  // by server: of the replacement that serves, see Replacement
  std::vector<Loss> workers_gone_;
  std::map<uint32_t, std::string> parts_ended_;  // by rank: why
  LossNotices losses_;
  Replacements replacements_;
};

}  // namespace herring::control
