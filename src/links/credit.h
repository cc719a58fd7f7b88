// Controls how many segments a flow may have outstanding: hill climbing on goodput that trusts only
// evidence.
//
// If the window is too large, many senders overrun one switch port, and one lost tail costs a
// retransmission timeout. If it is too small, the path is empty while results are awaited. Nothing
// tells in advance which window is right, and windows between a small and a large one may be worse
// than both. A large window that fills the path and its queue gives TCP more to send behind a lost
// packet, so the loss is detected at once. A medium window lacks this advantage. Therefore a job
// begins with a ladder: one interval on every window from one segment up, each twice as large as
// the one before (see ladder.h). The ladder ends early if a window keeps a link full and loses
// nothing, and the next one moves no more.
//
// After the ladder, the controller tries one other window at a time. It alternates with the current
// one (a-b-b-a, so that drift favours neither). It tries first the window that moved most on the
// ladder, then twice as much, half as much again, four times as much, and so on. A window that was
// ruinous on the ladder waits for a minute. The other window is kept only if it moved more bytes
// per second: clearly more in two pairs, or more in the median of six. On a full link, it must move
// plainly more in two pairs, or more in all six. Otherwise no rule forbids a trial: the queueing
// delay decides how much evidence a trial needs, not whether it runs.
//
// Where packets are lost, a timeout is rare and takes long, so a median would hide it. There,
// intervals are longer and all of them together decide. Flows may stand still for a while after a
// window that lost packets, so the next interval begins later.
//
// Packets queue for links, but also for busy processors, where larger windows save work. The two
// cases differ in where the time between a segment and its result goes. On a full link, half of
// that time is spent on the way there and half on the way back. If processes wait for processors or
// for each other, the network takes little of that time.
//
// Losses mean congestion only if half the window moves as much, because a window that overruns a
// switch is larger than the path. This is tried in the same way. If half the window moves less,
// packets are lost whatever the window is. If it loses as many, it takes more pairs to be kept.
//
// One controller, in rank 0, steers the whole job. Flows with their own controllers would gain by
// taking their neighbours' share. The credit travels in the headers of data, and servers repeat it
// in the headers of results. Pure: time is an argument.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/clock.h"
#include "links/ladder.h"

namespace herring::links {

class CreditController {
 public:
  // Credits are in segments. `fixed` turns the control off. `ladder` is the ladder's last window.
  // Larger windows, up to `maximum`, are tried only from there on, as far as allow() permits.
  CreditController(uint16_t initial, uint16_t maximum, bool fixed, size_t segment_bytes,
                   uint16_t ladder = UINT16_MAX);

  // Sets the number of flows that the window applies to: those on which rank 0 receives results.
  void set_flows(size_t flows) { flows_ = std::max<size_t>(flows, 1); }

  // Limits windows beyond the ladder. A window larger than the number of bytes a path can hold does
  // not help.
  void allow(size_t path_bytes);

  uint16_t credit() const { return climbing_ || trying_ ? other_ : base_; }
  uint16_t base() const { return base_; }
  // For the last finished trial: goodput with the other window divided by goodput without it.
  double last_gain() const { return last_gain_; }
  uint32_t trials() const { return trials_; }
  const Ladder& ladder() const { return ladder_; }
  bool climbing() const { return climbing_; }
  // Means over the last trial or rung: how long packets queued on the way, and the time from
  // pushing a segment to its result.
  Nanos queueing() const { return last_queueing_; }
  Nanos response() const { return last_response_; }

  // A transfer begins after a time in which nothing was outstanding.
  void on_start(Nanos now);
  // Results arrived. `bytes`: their size. `busy`: time for which something was outstanding.
  // `outstanding`: bytes outstanding before they arrived.
  void on_progress(size_t bytes, Nanos busy, size_t outstanding, Nanos now);
  // This many packets were lost somewhere in the job.
  void on_losses(uint32_t count, Nanos now);
  // Reports how long packets currently queue on the way: the mean round trip minus the shortest one
  // seen.
  void on_queueing(Nanos delay);

 private:
  uint16_t twice(uint16_t window) const {
    return static_cast<uint16_t>(std::min<uint32_t>(2u * window, largest()));
  }
  uint16_t largest() const { return !climbing_ && base_ >= last_rung_ ? allowed_ : last_rung_; }
  uint16_t larger() const { return std::max(base_, other_); }
  bool shrinking() const { return other_ < base_; }
  // Returns the bytes of a window on all flows that carry anything. A rank that shares its node
  // with others pushes only to some servers, and small shards do not fill a window.
  size_t turn(uint16_t window) const;
  // Returns whether packets queue, and for a large part of the time to a result.
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
  // Returns the best pace of the ladder so far, or the pace of the previous interval of a trial.
  double pace_before() const;
  // Returns for how long an interval runs at least.
  Nanos least_interval() const;
  // Skips what was sent with a larger window that lost packets.
  void settle_stalls();

  void climb(Nanos now, bool ruinous);
  // Ends the ladder. The next trial waits at least `pause`, unless the ladder itself found a better
  // window.
  void leave_ladder(Nanos now, Nanos pause);
  void choose_rung(Nanos now);
  // Returns whether these losses show that another rung must be chosen.
  bool lose_after_ladder(uint32_t count, Nanos now);

  void add_cost(double gain);
  bool end_trial(Nanos now, size_t pairs);
  bool end_lossy_trial(Nanos now, size_t pairs);
  void finish_trial(Nanos now, bool keep);
  void end_growing(Nanos now, bool keep);
  void end_shrinking(Nanos now, bool keep);
  // Returns the window that is tried after a trial of this larger window has failed.
  uint16_t after(uint16_t window) const;
  // Moves the next trial on to a window that was not ruinous on the ladder.
  void skip_ruinous();
  void hold(Nanos now, Nanos least);

  uint16_t base_;
  const uint16_t maximum_;
  const uint16_t last_rung_;
  uint16_t allowed_;             // between the ladder's end and the maximum
  const bool fixed_;
  const size_t segment_bytes_;
  size_t flows_ = 1;

  bool climbing_;                // on the ladder, each interval runs on the other window
  Ladder ladder_;
  Nanos ladder_pause_ = 0;       // before the first trial
  Nanos left_ladder_ = INT64_MIN / 2;
  Tally since_ladder_;           // of the chosen window, until the first trial
  uint32_t lost_ = 0;            // packets, in this interval
  std::array<Tally, 2> sides_;   // of this trial: without and with the other window
  bool sufficed_ = false;        // the last window of the ladder filled a link, lost nothing
  bool trying_ = false;          // this interval of a trial runs on the other window
  uint16_t other_;               // window of the current or next trial
  size_t intervals_ = 0;         // finished intervals of this trial
  double goodput_ = 0;           // of the last interval, bytes per second
  Nanos tried_for_ = 0;          // busy time on the other window in this pair
  Nanos cost_ = 0;               // time that this trial has lost
  std::array<double, 6> gains_ = {};  // of the pairs of this trial
  Nanos queueing_ = 0;           // as last reported
  // Sums since the end of the last trial, or since the last decision against a trial.
  Nanos queued_ = 0;             // sum of the reported queueing delays
  size_t reports_ = 0;
  double waited_ = 0;            // sum of bytes outstanding times duration
  size_t answered_ = 0;          // bytes of results
  Nanos last_queueing_ = 0, last_response_ = 0;
  double carrying_ = 0;          // most windows outstanding in this interval
  double carried_ = 0;           // the same in the previous interval; 0 if unknown
  size_t settle_ = 0;            // bytes to skip after a change
  Nanos settle_for_ = 0;         // and at least this time
  uint16_t ran_on_ = 0;          // credit of the previous interval
  size_t outstanding_ = 0;       // bytes, after the latest result
  size_t passed_ = 0;            // bytes skipped in this interval, and their duration
  Nanos passed_for_ = 0;
  bool starting_ = false;        // a transfer has begun, no result has come yet
  size_t transferred_ = 0;       // bytes since nothing was outstanding
  size_t transfer_ = 0;          // bytes of the previous transfer; 0 if unknown
  size_t bytes_ = 0;
  Nanos busy_ = 0;
  double last_gain_ = 0;
  uint32_t trials_ = 0;
  Nanos next_trial_ = 0;
  uint32_t losses_ = 0;          // in the current loss event
  bool blames_trial_ = false;    // the event began during or just after a larger trial
  Nanos event_until_ = 0;
  Nanos grew_at_ = INT64_MIN / 2;  // end of the last trial of a larger window
  Nanos next_shrink_ = 0, shrink_pause_;
  Nanos pause_;
};

}  // namespace herring::links
