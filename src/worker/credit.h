// How many segments a flow may have outstanding: a hill climb on goodput that trusts evidence only.
//
// A window that is too large makes many senders overrun one switch port, and one lost tail costs a
// retransmission time-out; one that is too small wastes a fast path. Nothing tells in advance which
// it is, so the controller starts at one segment and tries twice as much, in turn with what it has
// (a-b-b-a, so that a drift favours neither), and keeps the larger window only if it moved more
// bytes per second: clearly so in both pairs, or, where two pairs leave a doubt and the link is not
// full, in the median of six. On a link that is full, twice the window moves nothing more, so it
// stays small. Losses in any part of the job halve it, and the next trial waits; a lone one, which
// a packet out of order looks like too, only ends a trial.
//
// Packets queue for a link, but for busy processors too, and there larger windows save work. What
// tells them apart is where the time between a segment and its result goes: on a full link it is
// half on the way there and half on the way back; where processes wait for processors, or for each
// other, the way takes little of it. Where it takes most of the time there is no trial at all,
// unless the queue is short against the path itself: a long path that is nearly empty looks so too.
//
// One controller, in rank 0, steers the whole job: flows that tried on their own would gain by
// taking their neighbours' share. Its credit travels in the headers of data, servers repeat it in
// the headers of results. Pure: time is an argument.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/clock.h"

namespace herring::worker {

class CreditController {
 public:
  // Credits are in segments; fixed: no control.
  CreditController(uint16_t initial, uint16_t maximum, bool fixed, size_t segment_bytes);

  // How many flows the window counts for: those on which rank 0 receives results.
  void set_flows(size_t flows) { flows_ = std::max<size_t>(flows, 1); }

  uint16_t credit() const { return trying_ ? larger() : base_; }
  uint16_t base() const { return base_; }
  // Of the last finished trial: goodput with the larger window over goodput without.
  double last_gain() const { return last_gain_; }
  uint32_t trials() const { return trials_; }
  // During it, on average: how long packets waited on the way, and the time from pushing a segment
  // to its result.
  Nanos queueing() const { return last_queueing_; }
  Nanos response() const { return last_response_; }

  // The first bytes are pushed after a time without any: their results wait for the last rank that
  // begins, and say nothing about the window.
  void on_start();
  // Bytes of results that came in while something was outstanding: for how long, and how much.
  void on_progress(size_t bytes, Nanos busy, size_t outstanding, Nanos now);
  // So many packets were lost somewhere in the job.
  void on_losses(uint32_t count, Nanos now);
  // How long packets wait on the way now: mean round trip beyond the shortest seen, and that one.
  void on_queueing(Nanos delay, Nanos shortest);

 private:
  uint16_t larger() const {
    return static_cast<uint16_t>(std::min<uint32_t>(2u * base_, maximum_));
  }
  // Packets queue, and for more than this share of the time to a result.
  bool link_is_full(double share) const;
  // Packets queue for longer than `least`, and than a good part of the empty path takes.
  bool queue_is_long(Nanos least) const;
  Nanos mean_queueing() const;
  Nanos mean_shortest() const;
  Nanos mean_response() const;
  void begin_observation();
  void begin_interval();
  void finish_interval(Nanos now);
  void finish_trial(Nanos now, bool keep);
  void hold(Nanos now, Nanos least);

  uint16_t base_;
  const uint16_t maximum_;
  const bool fixed_;
  const size_t segment_bytes_;
  size_t flows_ = 1;

  bool trying_ = false;          // the interval runs on the larger window
  size_t intervals_ = 0;            // finished in this trial
  double goodput_ = 0;           // of the last one, bytes per second
  std::array<double, 6> gains_ = {};  // of the pairs of this trial
  Nanos queueing_ = 0, path_ = 0;  // as last reported; the shortest round trip
  // Since the end of the last trial, or the last decision against one.
  Nanos queued_ = 0, shortest_ = 0;  // queueing and shortest round trips, added up
  size_t reports_ = 0;           // of them
  double waited_ = 0;            // bytes outstanding, times for how long
  size_t answered_ = 0;          // bytes of results
  Nanos last_queueing_ = 0, last_response_ = 0;
  size_t settle_ = 0;            // bytes to pass over after a change
  size_t bytes_ = 0;
  Nanos busy_ = 0;
  double last_gain_ = 0;
  uint32_t trials_ = 0;
  Nanos next_trial_ = 0;
  uint32_t losses_ = 0;          // of the current event
  bool blames_trial_ = false;    // which began while the larger window was tried
  Nanos event_until_ = 0;
  Nanos pause_;
};

}  // namespace herring::worker
