#include "links/credit.h"

#include <utility>

namespace herring::links {
namespace {

// Gains: for a pair of intervals, goodput with the other window divided by goodput without it.
constexpr double kPlainGain = 1.2;    // on the ladder, or in each of two pairs: enough on any link
constexpr double kClearGain = 1.03;   // in each of the first two pairs: enough if no link is full
constexpr double kSmallGain = 1.015;  // in the median of all pairs, or in every pair
constexpr int kWithoutGain = 3;       // the trial fails after this many pairs without kSmallGain
constexpr double kAsMuch = 0.97;      // product of two pairs: half the window moves as much
constexpr double kClearLoss = 0.9;    // product of the first two pairs: the trial fails
constexpr double kPlainLoss = 0.8;    // of the first pair: the trial fails
constexpr double kRuinous = 0.5;      // in mid-interval: the trial fails at once
// Failed trials may cost at most one part in this many of a job's time.
constexpr Nanos kCostOfTrials = 100;
constexpr Nanos kShortQueueing = kMillisecond;
// Share of queueing in the time to a result. On a full link it is one half (the queue is seen only
// on the way there). If the processors of all hosts are the limit, it is one eighth.
constexpr double kQueueingOnAFullLink = 0.25;
// An interval ends with a transfer, so that losses at its end count. Otherwise it ends when it is
// so long that a few retransmission timeouts do not decide its result.
constexpr Nanos kLeastInterval = 15 * kMillisecond, kLongInterval = kSecond;
constexpr size_t kTurnsPerInterval = 4, kLeastBytes = 256 << 10;
// A window that holds a large part of a transfer is never used in full. The bytes skipped and
// counted scale with the window only if at least this many windows fit into a transfer, and into a
// second.
constexpr double kLeastTurns = 8;
constexpr Nanos kFirstPause = 200 * kMillisecond;
constexpr Nanos kLongestPause = 60 * kSecond;
constexpr Nanos kCongestionPause = 5 * kSecond;
constexpr Nanos kOneEvent = kSecond;
constexpr uint32_t kLossesThatCount = 3;
constexpr size_t kReportsThatCount = 4;

}  // namespace

CreditController::CreditController(uint16_t initial, uint16_t maximum, bool fixed,
                                   size_t segment_bytes, uint16_t ladder)
    : base_(std::max<uint16_t>(initial, 1)),
      maximum_(std::max(base_, maximum)),
      ladder_(std::clamp(ladder, base_, maximum_)),
      allowed_(ladder_),
      fixed_(fixed),
      segment_bytes_(segment_bytes),
      climbing_(!fixed && base_ < ladder_),
      other_(base_),
      shrink_pause_(kCongestionPause),
      pause_(kFirstPause) {
  begin_interval();
}

void CreditController::allow(size_t path_bytes) {
  allowed_ = static_cast<uint16_t>(
      std::clamp<size_t>(path_bytes / segment_bytes_, ladder_, maximum_));
  if (!fixed_ && !climbing_ && other_ == base_) other_ = twice(base_);
}

void CreditController::on_queueing(Nanos delay) {
  queueing_ = delay;
  queued_ += delay;
  ++reports_;
}

Nanos CreditController::mean_queueing() const {
  return reports_ == 0 ? queueing_ : queued_ / static_cast<Nanos>(reports_);
}

// Little's law: the mean amount outstanding is the rate of results times the time to a result.
Nanos CreditController::mean_response() const {
  return answered_ == 0 ? 0 : static_cast<Nanos>(waited_ / static_cast<double>(answered_));
}

// All three are means over the same time, because a larger window makes all of them longer.
bool CreditController::link_is_full() const {
  const auto queueing = static_cast<double>(mean_queueing());
  return queueing > kShortQueueing &&
         queueing > kQueueingOnAFullLink * static_cast<double>(mean_response());
}

void CreditController::on_start(Nanos now) {
  if (has_enough()) finish_interval(now);
  transfer_ = std::exchange(transferred_, 0);
  // Nothing from the previous transfer is still outstanding.
  settle_ = 0;
  starting_ = true;
}

size_t CreditController::turn(uint16_t window) const {
  const auto flows = static_cast<double>(flows_);
  const double known = carried_ > 0 ? carried_ : carrying_;
  const double carrying = known > 0 ? std::min(known, flows) : flows;
  const double bytes = carrying * static_cast<double>(segment_bytes_ * window);
  double most = bytes;
  if (transfer_ > 0) most = std::min(most, static_cast<double>(transfer_) / kLeastTurns);
  if (const double pace = pace_before(); pace > 0) {
    most = std::min(most, pace * to_seconds(kLongInterval) / kLeastTurns);
  }
  return static_cast<size_t>(most);
}

double CreditController::pace_before() const {
  if (!climbing_) return goodput_;
  return rungs_.empty() ? 0 : *std::max_element(rungs_.begin(), rungs_.end());
}

// First skips results of frames that were sent with the old credit. Then counts at least a few
// windows.
void CreditController::begin_interval() {
  carried_ = std::exchange(carrying_, 0);
  settle_ = 2 * turn(larger());
  bytes_ = passed_ = 0;
  busy_ = passed_for_ = 0;
}

void CreditController::on_progress(size_t bytes, Nanos busy, size_t outstanding, Nanos now) {
  transferred_ += bytes;
  if (fixed_ || (!climbing_ && other_ == base_)) return;
  // Skips the first result: it includes the wait for the last rank to start.
  if (std::exchange(starting_, false)) return;
  if (trying_) tried_for_ += busy;
  // Just after a change, frames of the old window are outstanding, too.
  if (settle_ == 0 || carried_ == 0) {
    carrying_ = std::max(carrying_, static_cast<double>(outstanding) /
                                        static_cast<double>(segment_bytes_ * credit()));
  }
  if (settle_ > 0) {
    if (carried_ == 0) settle_ = std::min(settle_, 2 * turn(larger()));
    settle_ -= std::min(settle_, bytes);
    passed_ += bytes;
    passed_for_ += busy;
    if (is_ruinous()) finish_interval(now);
    return;
  }
  waited_ += static_cast<double>(outstanding) * static_cast<double>(busy);
  answered_ += bytes;
  if (!climbing_ && !shrinking() && now < next_trial_) return;
  bytes_ += bytes;
  busy_ += busy;
  if ((busy_ >= kLongInterval && has_enough()) || is_ruinous()) finish_interval(now);
}

size_t CreditController::enough() const {
  return std::max(kTurnsPerInterval * turn(larger()), kLeastBytes);
}

bool CreditController::has_enough() const { return bytes_ >= enough() && busy_ >= kLeastInterval; }

// Half the pace is evidence enough that a trial fails, and a failed trial costs only itself.
// Results come in bursts, so the time that counts is the one in which all of them should have come.
bool CreditController::is_ruinous() const {
  if (climbing_ ? rungs_.empty() : !trying_ || intervals_ % 2 == 0) return false;
  const Nanos took = passed_for_ + busy_;
  const size_t all = std::max(passed_ + bytes_, passed_ + settle_ + enough());
  return took >= kLeastInterval &&
         static_cast<double>(all) < kRuinous * pace_before() * to_seconds(took);
}

void CreditController::finish_interval(Nanos now) {
  const bool ruinous = is_ruinous();
  if (ruinous) {
    bytes_ += passed_;
    busy_ += passed_for_;
  }
  if (climbing_) return climb(now);
  const double before = std::exchange(goodput_, pace());
  if (intervals_ % 2 == 1) {
    last_gain_ = gains_[intervals_ / 2] = trying_ ? goodput_ / before : before / goodput_;
    add_cost(last_gain_);
  }
  if (ruinous) return finish_trial(now, false);
  ++intervals_;
  trying_ = (intervals_ + 1) / 2 % 2 == 1;
  if (intervals_ % 2 == 0 && end_trial(now, intervals_ / 2)) return;
  begin_interval();
}

void CreditController::climb(Nanos now) {
  const double before = rungs_.empty() ? 0 : rungs_.back();
  rungs_.push_back(pace());
  last_queueing_ = mean_queueing();
  last_response_ = mean_response();
  const bool no_more = sufficed_ && pace() < kClearGain * before;
  // If no window helps, the next trial can wait: a larger window may be the first that overruns a
  // switch.
  if (no_more) return leave_ladder(now, kLongestPause);
  if (other_ == ladder_) return leave_ladder(now, 0);
  sufficed_ = reports_ >= kReportsThatCount && link_is_full() && losses_ == 0;
  losses_ = 0;
  other_ = twice(other_);
  begin_observation();
}

// Keeps the smallest window that no other window beats plainly. Then tries the smallest window that
// moves about as much as the best.
void CreditController::leave_ladder(Nanos now, Nanos pause) {
  const double best = *std::max_element(rungs_.begin(), rungs_.end());
  const auto first = [&](double gain) {
    uint16_t window = base_;
    for (const double goodput : rungs_) {
      if (gain * goodput >= best) break;
      window = twice(window);
    }
    return window;
  };
  other_ = first(kClearGain);
  base_ = first(kPlainGain);
  goodput_ = best;
  climbing_ = false;
  // Losses on the ladder say nothing about the chosen window.
  grew_at_ = now;
  next_shrink_ = now + kCongestionPause;
  if (other_ == base_) {
    other_ = twice(base_);
    hold(now, pause);
  }
  losses_ = 0;
  begin_observation();
}

void CreditController::add_cost(double gain) {
  const Nanos tried = std::exchange(tried_for_, 0);
  if (gain < 1) cost_ += static_cast<Nanos>(static_cast<double>(tried) * (1 - gain));
}

// Returns whether the trial has ended with this pair. A single pair may have met a hiccup of the
// machine. So a gain must be clear in two pairs or show in the median of all. On a full link, an
// apparent gain may come from the rhythm in which gradients arrive in bursts. A real gain shows in
// every pair.
bool CreditController::end_trial(Nanos now, size_t pairs) {
  const double gain = gains_[pairs - 1];
  const double both = pairs == 2 ? gains_[0] * gains_[1] : 1;
  const bool last = pairs == gains_.size();
  if (shrinking()) {
    if (pairs == 2) finish_trial(now, both >= kAsMuch);
    return pairs == 2;
  }
  const auto without = std::count_if(gains_.begin(), gains_.begin() + pairs,
                                     [](double each) { return each < kSmallGain; });
  if ((pairs == 1 && gain < kPlainLoss) || both < kClearLoss || without >= kWithoutGain) {
    finish_trial(now, false);
  } else if (pairs == 2 &&
             std::min(gains_[0], gains_[1]) >= (link_is_full() ? kPlainGain : kClearGain)) {
    finish_trial(now, true);
  } else if (link_is_full()) {
    if (gain >= kSmallGain && !last) return false;
    finish_trial(now, gain >= kSmallGain);
  } else if (last) {
    std::sort(gains_.begin(), gains_.end());
    last_gain_ = (gains_[2] + gains_[3]) / 2;
    finish_trial(now, last_gain_ >= kSmallGain);
  } else {
    return false;
  }
  return true;
}

void CreditController::finish_trial(Nanos now, bool keep) {
  trying_ = false;
  intervals_ = 0;
  ++trials_;
  last_queueing_ = mean_queueing();
  last_response_ = mean_response();
  shrinking() ? end_shrinking(now, keep) : end_growing(now, keep);
  cost_ = tried_for_ = 0;
  begin_observation();
}

// A failed trial says nothing about still larger windows, so the next trial uses twice as much.
void CreditController::end_growing(Nanos now, bool keep) {
  grew_at_ = now;
  if (keep) {
    base_ = other_;
    pause_ = kFirstPause;
  } else {
    hold(now, std::min(kCostOfTrials * cost_, kLongestPause));
  }
  other_ = twice(keep || other_ >= largest() ? base_ : other_);
}

void CreditController::end_shrinking(Nanos now, bool keep) {
  if (keep) {
    base_ = other_;
    hold(now, kCongestionPause);
    shrink_pause_ = kCongestionPause;
  } else {
    shrink_pause_ = std::min(std::max(shrink_pause_, kCostOfTrials * cost_), kLongestPause);
    next_shrink_ = now + shrink_pause_;
    shrink_pause_ = std::min(2 * shrink_pause_, kLongestPause);
  }
  other_ = twice(base_);
}

void CreditController::begin_observation() {
  queued_ = 0;
  reports_ = 0;
  waited_ = 0;
  answered_ = 0;
  begin_interval();
}

void CreditController::hold(Nanos now, Nanos least) {
  next_trial_ = now + std::max(pause_, least);
  pause_ = std::min(2 * std::max(pause_, least), kLongestPause);
}

// Losses alone do not mean congestion: some paths lose packets whatever their load. A window that
// overruns a switch is larger than the path, and half of it moves as much. If half of it moves
// less, the window is not the cause of the losses.
void CreditController::on_losses(uint32_t count, Nanos now) {
  if (fixed_) return;
  if (climbing_) {
    losses_ += count;
    return;
  }
  // One event shows up in several counters over several round trips.
  if (now >= event_until_) {
    event_until_ = now + kOneEvent;
    losses_ = 0;
    blames_trial_ = trying_ || now < grew_at_ + kOneEvent;
  }
  const uint32_t before = std::exchange(losses_, losses_ + std::min(count, kLossesThatCount));
  if (before >= kLossesThatCount || losses_ < kLossesThatCount || shrinking()) return;
  if (blames_trial_ || base_ == 1 || now < next_shrink_) return;  // a trial costs only itself
  trying_ = false;
  intervals_ = 0;
  other_ = base_ / 2;
  begin_interval();
}

}  // namespace herring::links
