// Handles everything between workers and a server except data: named operations, messages, groups
// and series. Changes are made one at a time. Every worker hears of them in that order, whichever
// proxy makes them. Any thread, unless stated otherwise.
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
#include "server/settlements.h"
#include "transport/event_loop.h"
#include "wire/frame.h"

namespace herring::server {

class Peer;

class Changes {
 public:
  static constexpr uint32_t kNobody = ~0u;  // no rank

  // Timers run on `loop`. `several_loops`: flows of workers are on other loops, too. `states`: what
  // messages say about missing ranks.
  Changes(const control::Cluster& cluster, GroupTable& groups, Aggregator& aggregator,
          uint32_t index, const observe::RankStates& states, transport::EventLoop& loop,
          bool several_loops);

  // A flow of a worker is connected, or has ended. `all`: the worker has no more flows to connect.
  // Called on the thread of its proxy.
  void connected(Peer& peer, bool all);
  void disconnected(const Peer& peer);

  // Handles a frame of `rank` other than data and its opening. Called on the thread of the rank's
  // proxy.
  Status control(const wire::FrameHeader& header, uint32_t rank, std::string text);
  // Fails every worker with `why`, which is the fault of `rank`. Does nothing if that rank is
  // already gone.
  void end_job(const Status& why, uint32_t rank = kNobody);
  // Handles a rank that makes no more calls: operations that wait for it fail. `how`: how it went.
  void rank_gone(uint32_t rank, const std::string& how);
  // Handles a rank that will send no more data: rounds that wait for its data go on without it.
  void data_missing(uint32_t rank);
  // No other server stands in for it.
  void server_gone(uint32_t server);
  // Warns about operations that have waited long, and fails those past their deadline. Also tells
  // ranks what none of them lacks any more. `by_left`: see Aggregator::stranded().
  void check_overdue(bool by_left);

  // Adds what there is to tell about calls and rounds of partial all-reduces.
  void report(Nanos now, ServerView& view);

  bool any_series() const { return series_.any(); }
  // Returns whether nothing is announced and no answer is delayed.
  bool idle();
  // Returns whether all workers that are in the job have connected, and have left or said that they
  // no longer need this server.
  bool released();
  // Returns the ranks that are not known to be gone although all their flows have ended, in the
  // order of these ends, with `late` also those that have not connected.
  std::vector<uint32_t> disconnected_ranks(bool late);
  // Prevents further changes, so that either all ranks hear of a change or none does.
  void end();

 private:
  // Changes the state and appends answers.
  using Change = std::function<Status(Nanos now, std::vector<Answer>& out)>;
  Status change(const Change& change, uint32_t from = kNobody);
  Status define_group(const wire::FrameHeader& header, uint32_t rank, std::string_view text,
                      std::vector<Answer>& out);
  Status leave_group(const wire::FrameHeader& header, uint32_t rank, const std::string& why,
                     std::vector<Answer>& out);
  void call_off(JobGroup& group, uint32_t author, const std::string& why, std::vector<Answer>& out);
  void answer_defined(std::vector<Answer>& out);
  void report_overdue(Nanos now, std::vector<Answer>& out);
  void answer(std::vector<Answer> answers, uint32_t from);
  void send_waiting(uint32_t rank);
  void set_timers();

  GroupTable& groups_;
  Aggregator& aggregator_;
  transport::EventLoop& loop_;
  const bool several_loops_;

  // The destination of answers to one rank.
  struct Recipient {
    Peer* peer = nullptr;         // the rank's first flow
    bool gone = false;            // that flow has ended
    uint32_t flows = 0;           // that are connected
    bool reached = false;         // all its flows have been connected
    uint64_t end = 0;             // the place of its last end among those of all flows
    bool released = false;        // it no longer needs this server
    std::vector<Answer> waiting;  // for the flow, or for a moment
  };
  std::mutex mutex_;  // guards all below; held from a change until its answers are queued
  Coordinator coordinator_;
  SeriesTable series_;
  Settlements settlements_;
  std::vector<Recipient> recipients_;  // by rank
  uint64_t flows_ended_ = 0;
  bool some_wait_ = false;             // a timer is set for delayed answers
  bool over_ = false;                  // no further changes
  bool half_changed_ = false;          // memory ran out in a change; only the job's end can be told
  Nanos series_wake_ = 0;              // time for which a timer is set
};

}  // namespace herring::server
