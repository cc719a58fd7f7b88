// What workers say to a server beside their data, and what they are told: named operations,
// messages, groups and series change one at a time, and every worker hears of changes in their
// order, whichever proxy makes them. Any thread, but for what says otherwise.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "control/cluster.h"
#include "server/aggregator.h"
#include "server/answer.h"
#include "server/coordinator.h"
#include "server/group_table.h"
#include "server/series.h"
#include "transport/event_loop.h"
#include "wire/frame.h"

namespace herring::server {

class Peer;

class Changes {
 public:
  static constexpr uint32_t kNobody = ~0u;  // no rank

  // Timers are those of `loop`. `several_loops`: workers' flows are on others too.
  Changes(const control::Cluster& cluster, GroupTable& groups, Aggregator& aggregator,
          uint32_t index, transport::EventLoop& loop, bool several_loops);

  // The first flow of a worker is there, or has ended. On its proxy's thread.
  void connected(Peer& peer);
  void disconnected(const Peer& peer);

  // Any frame of `rank` but data and its opening. On its proxy's thread.
  Status control(const wire::FrameHeader& header, uint32_t rank, std::string text);
  // Every worker fails with this, which is the fault of `rank`; not if that is gone already.
  void end_job(const Status& why, uint32_t rank = kNobody);
  // A rank calls nothing any more: what still waits for it fails. `how` it has gone.
  void rank_gone(uint32_t rank, const std::string& how);
  // Of a rank that is gone no more data will come: rounds that wait for some go on without it.
  void data_missing(uint32_t rank);
  // Warns of what waits for long, and fails what is past its deadline.
  void check_overdue();

  bool any_series() const { return series_.any(); }
  // Nothing is announced, and nothing waits to be said.
  bool idle();
  // Every worker that is connected needs this server no more.
  bool released();
  // Nothing changes any more: of what has changed either all hear or nobody.
  void end();

 private:
  // Changes what is kept, and answers.
  using Change = std::function<Status(Nanos now, std::vector<Answer>& out)>;
  Status change(const Change& change, uint32_t from = kNobody);
  Status define_group(uint32_t group, uint32_t rank, std::string_view text,
                      std::vector<Answer>& out);
  Status leave_group(const wire::FrameHeader& header, uint32_t rank, const std::string& why,
                     std::vector<Answer>& out);
  void answer_defined(std::vector<Answer>& out);
  void report_overdue(Nanos now, std::vector<Answer>& out);
  void answer(std::vector<Answer> answers, uint32_t from);
  void send_waiting(uint32_t rank);
  void set_timers();

  GroupTable& groups_;
  Aggregator& aggregator_;
  transport::EventLoop& loop_;
  const bool several_loops_;

  // Where the answers to one rank go.
  struct Recipient {
    Peer* peer = nullptr;         // its first flow
    bool gone = false;            // that flow has ended
    bool released = false;        // it needs this server no more
    std::vector<Answer> waiting;  // for the flow, or for a moment
  };
  std::mutex mutex_;  // guards all below; held while a change is made and until it is queued
  Coordinator coordinator_;
  SeriesTable series_;
  std::vector<Recipient> recipients_;  // by rank
  bool some_wait_ = false;             // a timer is set for them
  bool ends_ = false;                  // nothing changes any more
  bool half_changed_ = false;          // for lack of memory: only the job's end can be told
  Nanos series_wake_ = 0;              // a timer is set for then
};

}  // namespace herring::server
