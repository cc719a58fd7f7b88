// Watches a running job for the people who run it: collects the reports of all members, tells
// members about ranks that hold them up, and writes lines to the log.
#pragma once

#include <string>
#include <string_view>

#include "control/cluster.h"
#include "control/peer.h"
#include "observe/monitor.h"

namespace herring::control {

// Runs on the thread of the rendezvous.
class Watch {
 public:
  struct Options {
    std::string job;  // its name
    Nanos report_every = 300 * kSecond;
  };

  // `loop` and `peers` must outlive the Watch, which must not be destroyed before the loop has ended.
  Watch(transport::EventLoop& loop, const Peers& peers, const Cluster& cluster, Options options);

  // A member has sent a report. Returns an error if it is malformed.
  Status report(const Peer& from, std::string_view payload);
  void gone(const Peer& peer, bool left);
  observe::Picture picture();
  // Writes the last lines of the job to the log.
  void end();

 private:
  void tick();
  void hear();

  // How often the job is looked at, and how often members are told of ranks that hold others up.
  static constexpr Nanos kTick = 250 * kMillisecond, kTelling = 500 * kMillisecond;

  transport::EventLoop& loop_;
  const Peers& peers_;
  observe::Monitor monitor_;
  Nanos tell_at_ = 0;
  bool told_ = false;  // members know of some rank
  bool ended_ = false;
};

}  // namespace herring::control
