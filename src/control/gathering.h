// Registration: from the first process that comes until the job is complete, or cannot be.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/reminders.h"
#include "control/assembly.h"
#include "control/cluster.h"
#include "control/peer.h"
#include "control/rendezvous.h"
#include "transport/address.h"

namespace herring::control {

// Takes registrations, has colocated servers started, and sends the complete cluster to all
// processes, or tells all of them why there is none. Also answers processes that come too late.
// Owns the deadline, the cluster, and the record of who knows of a failure. Runs on the thread of
// the rendezvous, except for start(), which is called before.
class Gathering {
 public:
  struct Outcome {
    std::function<void()> complete;  // members are about to get the whole cluster
    std::function<void()> told_all;  // all know of the failure, also those who came after it
    // A dedicated server has registered at a running job that may lose its servers.
    std::function<void(Peer&)> offer;
  };
  // `peers` and `options` must outlive the Gathering.
  Gathering(transport::EventLoop& loop, const Peers& peers, const RendezvousOptions& options,
            const transport::Address& address, Outcome outcome);

  void start();
  Cluster& cluster() { return cluster_; }

  // If this returns an error, the peer is dropped.
  Status on_register(Peer& peer, std::string_view payload);
  // Called for a process of the job that has found out by itself that it cannot take part.
  void on_declined(Peer& peer, const Status& why);
  // Called for a connection that did not prove itself.
  void on_refused(const std::string& host, const std::string& why) { refusals_.add(host, why); }
  // Called if a registered process dies, leaves or aborts before all processes are there. A job
  // that lacks one of them cannot begin.
  void lose(const Peer& peer, const std::string& how);
  void leave(const Peer& peer);
  void abort(Peer& author, const Status& why);
  // The rendezvous ends. Processes that come from now on belong to the next job.
  void stop();

 private:
  enum class State { kGathering, kStartingServers, kComplete, kFailed };

  bool is_waiting() const {
    return state_ == State::kGathering || state_ == State::kStartingServers;
  }
  void refuse(Peer& peer, const Status& why, bool again = false);
  Status find_place(const ServerRegistration& server) const;
  bool comes_again(const Peer& worker) const;
  uint32_t dedicated_here() const;
  std::vector<RegisteredWorker> workers() const;
  std::string describe(const Peer& peer) const;
  std::string describe_missing() const;
  void shorten_deadline(Nanos patience);
  void arm_deadline();
  void on_deadline();
  void warn();
  void advance();
  void wait_for_others(const Status& contradiction);
  void begin_servers(const std::vector<RegisteredWorker>& all);
  void number_servers();
  void complete();
  template <typename Gets>
  void send_cluster(wire::FrameType type, Gets gets);
  void fail(const Status& why);
  void check_told();

  transport::EventLoop& loop_;
  const Peers& peers_;
  const RendezvousOptions& options_;
  const transport::Address address_;
  const Outcome outcome_;
  const Nanos started_;
  Nanos deadline_;
  Reminders reminders_;  // for telling those who wait who is missing
  const Nanos usual_start_;  // until then the missing ones are probably about to come
  transport::EventLoop::TimerId deadline_timer_ = 0;

  State state_ = State::kGathering;
  uint32_t registered_ = 0;  // workers
  uint32_t dedicated_ = 0;   // registered dedicated servers
  Roster roster_;
  Refusals refusals_;
  Status contradiction_;  // found, but not yet told
  Cluster cluster_;
  std::vector<double> weights_;
  std::set<uint32_t> missing_nodes_;  // nodes whose colocated servers are awaited
  Status failure_;
  std::set<uint32_t> told_;    // ranks that know failure_
  uint32_t told_servers_ = 0;  // dedicated servers that know failure_
  bool stopping_ = false;
};

}  // namespace herring::control
