#include "links/credit.h"

#include <utility>

namespace herring::links {
namespace {

// Gains: for a pair of intervals, goodput with the other window divided by goodput without it.
// kPlainGain in each of two pairs is enough on any link, kClearGain if no link is full.
constexpr double kSmallGain = 1.015;  // in the median of all pairs, or in every pair
constexpr int kWithoutGain = 3;       // the trial fails after this many pairs without kSmallGain
constexpr double kAsMuch = 0.97;      // product of two pairs: half the window moves as much
constexpr double kClearLoss = 0.9;    // product of the first two pairs: the trial fails
constexpr double kPlainLoss = 0.8;    // of the first pair: the trial fails
// Failed trials may cost at most one part in this many of a job's time.
constexpr Nanos kCostOfTrials = 100;
constexpr Nanos kShortQueueing = kMillisecond;
// Share of queueing in the time to a result. On a full link it is one half (the queue is seen only
// on the way there). If the processors of all hosts are the limit, it is one eighth.
constexpr double kQueueingOnAFullLink = 0.25;
// An interval ends with a transfer, so that losses at its end count. Otherwise it ends when it is
// so long that a few retransmission timeouts do not decide its result.
constexpr Nanos kLeastInterval = 15 * kMillisecond, kLongInterval = kSecond;
// An interval of a trial lasts so long that the losses of a larger window are known at its end.
constexpr Nanos kLeastOfATrial = kLossesLateBy;
constexpr size_t kTurnsPerInterval = 4, kLeastBytes = 256 << 10;
// A window that holds a large part of a transfer is never used in full. The bytes skipped and
// counted scale with the window only if at least this many windows fit into a transfer, and into a
// second.
constexpr double kLeastTurns = 8;
constexpr Nanos kFirstPause = 200 * kMillisecond;
constexpr Nanos kLongestPause = 60 * kSecond;
constexpr Nanos kCongestionPause = 5 * kSecond;
constexpr Nanos kOneEvent = kSecond;
constexpr size_t kReportsThatCount = 4;
// Where packets are lost, an interval lasts so long, on the ladder and in a trial.
constexpr Nanos kLossyRung = 250 * kMillisecond, kLossyInterval = 400 * kMillisecond;
// After a window that lost packets, flows stand still for one or more timeouts. So long they may
// still do so when the window is smaller again.
constexpr Nanos kTimeout = 200 * kMillisecond, kStall = kSecond;
// A window that overruns a port is kept only after so many pairs.
constexpr size_t kPairsOfAnOverrun = 4;

}  // namespace

CreditController::CreditController(uint16_t initial, uint16_t maximum, bool fixed,
                                   size_t segment_bytes, uint16_t ladder)
    : base_(std::max<uint16_t>(initial, 1)),
      maximum_(std::max(base_, maximum)),
      last_rung_(std::clamp(ladder, base_, maximum_)),
      allowed_(last_rung_),
      fixed_(fixed),
      segment_bytes_(segment_bytes),
      climbing_(!fixed && base_ < last_rung_),
      ladder_(base_, last_rung_),
      other_(base_),
      shrink_pause_(kCongestionPause),
      pause_(kFirstPause) {
  begin_interval();
}

void CreditController::allow(size_t path_bytes) {
  allowed_ = static_cast<uint16_t>(
      std::clamp<size_t>(path_bytes / segment_bytes_, last_rung_, maximum_));
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
  settle_for_ = 0;
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

double CreditController::pace_before() const { return climbing_ ? ladder_.most() : goodput_; }

// Where packets are lost, few timeouts must not decide the result of an interval.
Nanos CreditController::least_interval() const {
  if (climbing_) return ladder_.lossy() ? kLossyRung : kLeastInterval;
  return lost_ + sides_[0].lost >= kLossesThatCount ? kLossyInterval : kLeastOfATrial;
}

// First skips results of frames that were sent with the old credit. Then counts at least a few
// windows.
void CreditController::begin_interval() {
  carried_ = std::exchange(carrying_, 0);
  settle_ = 2 * turn(larger());
  settle_for_ = 0;
  const bool shrinks = std::exchange(ran_on_, credit()) > credit();
  if (std::exchange(lost_, 0) >= kLossesThatCount && shrinks) settle_stalls();
  bytes_ = passed_ = 0;
  busy_ = passed_for_ = 0;
}

// What was sent with a larger window must have been answered, and lost packets sent again.
void CreditController::settle_stalls() {
  settle_ = std::max(settle_, outstanding_);
  settle_for_ = kStall;
}

void CreditController::on_progress(size_t bytes, Nanos busy, size_t outstanding, Nanos now) {
  transferred_ += bytes;
  outstanding_ = outstanding - std::min(outstanding, bytes);
  if (fixed_ || (!climbing_ && other_ == base_)) return;
  // Skips the first result: it includes the wait for the last rank to start.
  if (std::exchange(starting_, false)) return;
  if (trying_) tried_for_ += busy;
  // Just after a change, frames of the old window are outstanding, too.
  if (settle_ == 0 || carried_ == 0) {
    carrying_ = std::max(carrying_, static_cast<double>(outstanding) /
                                        static_cast<double>(segment_bytes_ * credit()));
  }
  if (settle_ > 0 || passed_for_ < settle_for_) {
    if (carried_ == 0 && settle_for_ == 0) settle_ = std::min(settle_, 2 * turn(larger()));
    settle_ -= std::min(settle_, bytes);
    passed_ += bytes;
    passed_for_ += busy;
    if (is_ruinous()) finish_interval(now);
    return;
  }
  if (!climbing_ && !trying_) {
    since_ladder_.bytes += bytes;
    since_ladder_.busy += busy;
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

bool CreditController::has_enough() const {
  return bytes_ >= enough() && busy_ >= least_interval();
}

// Half the pace is evidence enough that a trial fails, and a failed trial costs only itself.
// Results come in bursts, so the time that counts is the one in which all of them should have come.
bool CreditController::is_ruinous() const {
  if (climbing_ ? ladder_.rungs().empty() : !trying_ || intervals_ % 2 == 0) return false;
  const Nanos took = passed_for_ + busy_;
  const size_t all = std::max(passed_ + bytes_, passed_ + settle_ + enough());
  const bool lossy = climbing_ ? ladder_.lossy() : sides_[0].lossy();
  const Nanos least = !lossy ? kLeastInterval : climbing_ ? kLossyRung : kLossyInterval;
  return took >= least &&
         static_cast<double>(all) < kRuinous * pace_before() * to_seconds(took);
}

void CreditController::finish_interval(Nanos now) {
  const bool ruinous = is_ruinous();
  if (ruinous) {
    bytes_ += passed_;
    busy_ += passed_for_;
  }
  if (climbing_) return climb(now, ruinous);
  const double before = std::exchange(goodput_, pace());
  Tally& side = sides_[trying_];
  side.bytes += bytes_;
  side.busy += busy_;
  side.lost += lost_;
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

void CreditController::climb(Nanos now, bool ruinous) {
  const double before = ladder_.rungs().empty() ? 0 : ladder_.latest().goodput;
  const bool full = reports_ >= kReportsThatCount && link_is_full();
  ladder_.add(pace(), {bytes_ + passed_, busy_ + passed_for_}, full, now);
  last_queueing_ = mean_queueing();
  last_response_ = mean_response();
  const bool no_more = sufficed_ && pace() < kClearGain * before;
  sufficed_ = full && losses_ == 0;
  losses_ = 0;
  // If no window helps, the next trial can wait: a larger window may be the first that overruns a
  // switch.
  if (no_more) return leave_ladder(now, kLongestPause);
  if (!ladder_.advance(ruinous)) return leave_ladder(now, 0);
  other_ = ladder_.window();
  begin_observation();
}

void CreditController::leave_ladder(Nanos now, Nanos pause) {
  climbing_ = false;
  left_ladder_ = now;
  ladder_pause_ = pause;
  // Losses on the ladder say nothing about the chosen window.
  grew_at_ = now;
  next_shrink_ = now + kCongestionPause;
  choose_rung(now);
}

// A trial follows at once only if the ladder promises that it gains something.
void CreditController::choose_rung(Nanos now) {
  const Ladder::Choice choice = ladder_.choose(flows_);
  base_ = choice.window;
  other_ = choice.better;
  goodput_ = choice.goodput;
  pause_ = kFirstPause;
  if (other_ == base_) {
    other_ = twice(base_);
    hold(now, ladder_.overran(last_rung_) ? kLongestPause : ladder_pause_);
    skip_ruinous();
    if (other_ != twice(base_)) next_trial_ = now;  // between a rung that fits and a larger one
  } else if (base_ > 1 && ladder_.overran(twice(base_))) {
    other_ = after(twice(base_));  // before a window that may have been lucky
  }
  since_ladder_ = {};
  trying_ = false;
  intervals_ = 0;
  sides_ = {};
  begin_observation();
  if (ladder_.lossy()) settle_stalls();
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
  if (sides_[0].lossy() || sides_[1].lossy()) return end_lossy_trial(now, pairs);
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

// A timeout is rare and takes long, so only all intervals together tell what a window moves.
bool CreditController::end_lossy_trial(Nanos now, size_t pairs) {
  const double gain = sides_[1].goodput() / sides_[0].goodput();
  const bool last = pairs == gains_.size();
  last_gain_ = gain;
  if (shrinking()) {
    const bool less = sides_[0].loses_more_than(sides_[1], 2);
    const bool worse = gain < kPlainLoss || (!less && gains_[pairs - 1] < kClearLoss);
    if (!worse && pairs < (less ? 2 : 3)) return false;
    finish_trial(now, !worse && gain >= kAsMuch);
    return true;
  }
  const bool overruns = sides_[1].overran(sides_[0]);
  if (overruns ? gain < kClearGain : pairs >= 2 && gain < kClearLoss) {
    finish_trial(now, false);
  } else if (last) {
    const bool every = *std::min_element(gains_.begin(), gains_.end()) >= kSmallGain;
    finish_trial(now, gain >= kPlainGain || (gain >= kClearGain && (every || !link_is_full())));
  } else if (gain >= kPlainGain && pairs >= (overruns ? kPairsOfAnOverrun : 2)) {
    finish_trial(now, true);
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
  sides_ = {};
  begin_observation();
}

// A failed trial says nothing about still larger windows, so the next trial uses twice as much.
void CreditController::end_growing(Nanos now, bool keep) {
  grew_at_ = now;
  if (keep) {
    base_ = other_;
    pause_ = kFirstPause;
  } else {
    // Flows that stand still after losses cost more than the trial itself.
    if (sides_[1].overran(sides_[0])) cost_ += kTimeout;
    hold(now, std::min(kCostOfTrials * cost_, kLongestPause));
  }
  other_ = keep ? twice(base_) : after(other_);
  skip_ruinous();
}

// The windows that are tried after each other: twice the current one, half as much again, and then
// four times, eight times, and so on. One may fit between a window that fits and twice as much.
uint16_t CreditController::after(uint16_t window) const {
  const auto between =
      static_cast<uint16_t>(std::min<uint32_t>(base_ + base_ / 2u, largest()));
  if (base_ > 1 && window == twice(base_) && between < window) return between;
  if (window == between) return twice(twice(base_));
  return twice(window >= largest() ? base_ : window);
}

// A window that was ruinous on the ladder is not tried for a while.
void CreditController::skip_ruinous() {
  // There are fewer candidates than bits in two windows.
  for (int i = 0; i < 32; ++i) {
    if (!ladder_.was_ruinous(other_, base_)) return;
    other_ = after(other_);
  }
  other_ = twice(base_);
  next_trial_ = std::max(next_trial_, left_ladder_ + kLongestPause);
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

// Losses just after the ladder are its own. Later ones show if the chosen window overruns a port.
bool CreditController::lose_after_ladder(uint32_t count, Nanos now) {
  if (now < left_ladder_ + kLossesLateBy) {
    ladder_.lose(count, now);
    return true;
  }
  if (since_ladder_.busy >= 2 * kLossesLateBy) since_ladder_.lost += count;
  return ladder_.corrects(base_, since_ladder_);
}

// Losses alone do not mean congestion: some paths lose packets whatever their load. A window that
// overruns a switch is larger than the path, and half of it moves as much. If half of it moves
// less, the window is not the cause of the losses.
void CreditController::on_losses(uint32_t count, Nanos now) {
  if (fixed_) return;
  lost_ += count;
  if (climbing_) {
    ladder_.lose(count, now);
    losses_ += count;
    return;
  }
  if (trials_ == 0 && !trying_ && lose_after_ladder(count, now)) return choose_rung(now);
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
  sides_ = {};
  other_ = base_ / 2;
  begin_interval();
}

}  // namespace herring::links
