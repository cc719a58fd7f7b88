// The windows that a job tries at its beginning, from one segment up, each twice as large as the
// one before. Remembers what each of them moved and lost, and chooses among them.
//
// A window that overruns a switch port loses a large part of its packets. It may move more than all
// others for a while, until a timeout stops it. So goodput alone does not tell which window is
// right, and a rung that overran a port must move much more than one that did not. Some paths lose
// packets whatever the window is. There, no rung loses far more than the others.
//
// Pure: time is an argument.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/clock.h"

namespace herring::links {

// Goodput with one window divided by goodput with another: plainly more, clearly more, and so
// little that a trial ends at once.
inline constexpr double kPlainGain = 1.2, kClearGain = 1.03, kRuinous = 0.5;
// A single loss is ignored, because a reordered packet looks the same.
inline constexpr uint32_t kLossesThatCount = 3;

// The counters of losses are polled every 50 ms, and a loss counts at the second poll after it.
inline constexpr Nanos kLossesLateBy = 50 * kMillisecond;

// What was moved and lost on a window.
struct Tally {
  size_t bytes = 0;   // of results
  Nanos busy = 0;
  uint32_t lost = 0;  // packets of the whole job

  double goodput() const { return busy > 0 ? static_cast<double>(bytes) / to_seconds(busy) : 0; }
  bool lossy() const { return lost >= kLossesThatCount; }
  // Returns whether packets were lost more than `times` as often as in the other tally.
  bool loses_more_than(const Tally& other, double times) const;
  // Returns whether the window overran a port, if the one of the other tally did not.
  bool overran(const Tally& other) const;
};

struct Rung {
  uint16_t window = 0;  // segments
  double goodput = 0;   // bytes per second, without the time after the change of the window
  Tally tally;
  bool full = false;    // packets queued for a link
  Nanos began = 0, ended = 0;
};

class Ladder {
 public:
  Ladder(uint16_t first, uint16_t last) : last_(last), window_(first) {}

  uint16_t window() const { return window_; }  // of the rung that runs
  // The rungs so far, the smallest first, and the one that ended last.
  const std::vector<Rung>& rungs() const { return rungs_; }
  const Rung& latest() const { return rungs_[latest_]; }
  double most() const;  // goodput
  bool lossy() const { return lost_ >= kLossesThatCount; }
  // Returns whether a rung up to this window overran a port.
  bool overran(uint16_t window) const;

  // Packets were lost. They count for the last rung that had begun when they were lost, because a
  // larger window overruns a port before a smaller one does.
  void lose(uint32_t count, Nanos now);
  // The rung has ended. `full`: packets queued for a link.
  void add(double goodput, Tally tally, bool full, Nanos now);
  // Moves to the next rung; returns false if there is none. After two ruinous windows, the last
  // window comes next, because only one that fills the queues may be better. Those in between
  // follow only if it is.
  bool advance(bool ruinous);

  struct Choice {
    uint16_t window = 0, better = 0;  // `better` moved more, but may not be worth it
    double goodput = 0;
  };
  // Chooses the smallest window that no other window beats plainly. `flows`: the flows on which
  // results come.
  Choice choose(size_t flows) const;
  // The chosen window has moved and lost this since the ladder. Returns whether it overruns a
  // port after all. If so, the ladder knows it, and another window must be chosen.
  bool corrects(uint16_t window, const Tally& since);
  // Returns whether the window, or those next to it, were far worse than the best. `base` is known
  // to be good.
  bool was_ruinous(uint16_t window, uint16_t base) const;

 private:
  bool first_overran(size_t rungs) const;  // one of the first rungs
  double worth(size_t rung) const;
  bool loses_at_random(size_t flows) const;

  const uint16_t last_;
  uint16_t window_;
  std::vector<Rung> rungs_;
  size_t latest_ = 0;
  Nanos began_ = 0;            // of the rung that runs
  uint32_t lost_here_ = 0;     // on the rung that runs
  uint32_t lost_ = 0;
  size_t ruinous_ = 0;         // ruinous rungs in a row
  uint16_t skipped_from_ = 0;  // the first window that was skipped; 0: none
};

}  // namespace herring::links
