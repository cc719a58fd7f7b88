// How many segments a flow may have outstanding: a climb on goodput that trusts evidence only.
//
// A window that is too large makes many senders overrun one switch port, and one lost tail costs a
// retransmission time-out; one that is too small leaves the path empty while results are awaited.
// Nothing tells in advance which it is, and what lies between a small window and a large one may be
// worse than both: a window that fills the path and its queue leaves TCP something to send behind a
// lost packet, by which it is missed at once. So a job begins with a ladder, one interval on every
// window from one segment up, each twice the one before. It ends early where a window keeps a
// link full, loses nothing, and the next one moves no more.
//
// After that the controller tries one other window at a time, in turn with what it has (a-b-b-a, so
// that a drift favours neither): first what moved most on the ladder, then twice as much, and twice
// that. The other window stays only if it moved more bytes per second: clearly so in two pairs, or
// in the median of six. On a link that is full, plainly so in two, or in all six. No rule forbids a
// trial: how long packets queue says what evidence it takes, not whether to try.
//
// Packets queue for a link, but for busy processors too, and there larger windows save work. What
// tells them apart is where the time between a segment and its result goes: on a full link it is
// half on the way there and half on the way back; where processes wait for processors, or for each
// other, the way takes little of it.
//
// Losses are congestion where half the window moves as much, and that is tried the same way: a
// window that overruns a switch is larger than the path. Where half moves less, packets are lost
// whatever the window is. A lone loss, which a packet out of order looks like too, is ignored.
//
// One controller, in rank 0, steers the whole job: flows that tried on their own would gain by
// taking their neighbours' share. Its credit travels in the headers of data, servers repeat it in
// the headers of results. Pure: time is an argument.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "base/clock.h"

namespace herring::worker {

class CreditController {
 public:
  // Credits are in segments; fixed: no control. `ladder`: its last rung; beyond that, up to
  // `maximum`, windows are tried from there on only, as far as allow() says.
  CreditController(uint16_t initial, uint16_t maximum, bool fixed, size_t segment_bytes,
                   uint16_t ladder = UINT16_MAX);

  // How many flows the window counts for: those on which rank 0 receives results.
  void set_flows(size_t flows) { flows_ = std::max<size_t>(flows, 1); }

  // No window beyond the ladder that holds more bytes than a path can have on its way helps.
  void allow(size_t path_bytes);

  uint16_t credit() const { return climbing_ || trying_ ? other_ : base_; }
  uint16_t base() const { return base_; }
  // Of the last finished trial: goodput with the other window over goodput without.
  double last_gain() const { return last_gain_; }
  uint32_t trials() const { return trials_; }
  // Goodput of each window of the ladder so far, from one segment up, in bytes per second.
  const std::vector<double>& rungs() const { return rungs_; }
  bool climbing() const { return climbing_; }
  // During it, on average: how long packets waited on the way, and the time from pushing a segment
  // to its result.
  Nanos queueing() const { return last_queueing_; }
  Nanos response() const { return last_response_; }

  // The first bytes are pushed after a time without any: a transfer has ended, another begins.
  void on_start(Nanos now);
  // Bytes of results that came in while something was outstanding: for how long, and how much.
  void on_progress(size_t bytes, Nanos busy, size_t outstanding, Nanos now);
  // So many packets were lost somewhere in the job.
  void on_losses(uint32_t count, Nanos now);
  // How long packets wait on the way now: the mean round trip beyond the shortest seen.
  void on_queueing(Nanos delay);

 private:
  uint16_t twice(uint16_t window) const {
    return static_cast<uint16_t>(std::min<uint32_t>(2u * window, largest()));
  }
  uint16_t largest() const { return !climbing_ && base_ >= ladder_ ? allowed_ : ladder_; }
  uint16_t larger() const { return std::max(base_, other_); }
  bool shrinking() const { return other_ < base_; }
  // Bytes of a window on all flows that carry anything: a rank that shares its node with others
  // pushes to some servers only, and small shards fill no window.
  size_t turn(uint16_t window) const;
  // Packets queue, and for a good part of the time to a result.
  bool link_is_full() const;
  Nanos mean_queueing() const;
  Nanos mean_response() const;

  void begin_observation();
  void begin_interval();
  bool has_enough() const;
  size_t enough() const;
  bool is_ruinous() const;
  void finish_interval(Nanos now);
  double pace() const { return static_cast<double>(bytes_) / to_seconds(busy_); }
  double pace_before() const;

  void climb(Nanos now);
  // The next trial waits for `pause` at least, unless the ladder itself has named a better window.
  void leave_ladder(Nanos now, Nanos pause);

  void add_cost(double gain);
  bool end_trial(Nanos now, size_t pairs);
  void finish_trial(Nanos now, bool keep);
  void end_growing(Nanos now, bool keep);
  void end_shrinking(Nanos now, bool keep);
  void hold(Nanos now, Nanos least);

  uint16_t base_;
  const uint16_t maximum_;
  const uint16_t ladder_;
  uint16_t allowed_;             // from the ladder's end up to the maximum
  const bool fixed_;
  const size_t segment_bytes_;
  size_t flows_ = 1;

  bool climbing_;                // the ladder: the interval runs on the other window
  std::vector<double> rungs_;
  bool sufficed_ = false;        // the last rung's window kept a link full and lost nothing
  bool trying_ = false;          // the interval of a trial runs on the other window
  uint16_t other_;               // of the trial that runs or comes next
  size_t intervals_ = 0;         // finished in this trial
  double goodput_ = 0;           // of the last one, bytes per second
  Nanos tried_for_ = 0;          // busy time on the other window in this pair
  Nanos cost_ = 0;               // time that this trial has lost
  std::array<double, 6> gains_ = {};  // of the pairs of this trial
  Nanos queueing_ = 0;           // as last reported
  // Since the end of the last trial, or the last decision against one.
  Nanos queued_ = 0;             // reports of it, added up
  size_t reports_ = 0;
  double waited_ = 0;            // bytes outstanding, times for how long
  size_t answered_ = 0;          // bytes of results
  Nanos last_queueing_ = 0, last_response_ = 0;
  double carrying_ = 0;          // most flows' windows outstanding in this interval
  double carried_ = 0;           // in the one before; 0: not known
  size_t settle_ = 0;            // bytes to pass over after a change
  size_t passed_ = 0;            // bytes that were, in this interval, and for how long
  Nanos passed_for_ = 0;
  bool starting_ = false;        // a transfer of which nothing has come yet
  size_t transferred_ = 0;       // since nothing was outstanding
  size_t transfer_ = 0;          // the last time, until nothing was again; 0: not known
  size_t bytes_ = 0;
  Nanos busy_ = 0;
  double last_gain_ = 0;
  uint32_t trials_ = 0;
  Nanos next_trial_ = 0;
  uint32_t losses_ = 0;          // of the current event
  bool blames_trial_ = false;    // which began while a larger window was tried, or just after
  Nanos event_until_ = 0;
  Nanos grew_at_ = INT64_MIN / 2;  // end of the last trial of a larger window
  Nanos next_shrink_ = 0, shrink_pause_;
  Nanos pause_;
};

}  // namespace herring::worker
