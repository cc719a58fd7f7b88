#include "worker/credit.h"

#include <utility>

namespace herring::worker {
namespace {

constexpr double kClearGain = 1.03;   // enough if each of the first two pairs shows it
constexpr double kSmallGain = 1.015;  // enough in the median of all pairs, or in every one
constexpr double kClearLoss = 0.9;    // of the first two pairs together: the others are not needed
constexpr double kPlainLoss = 0.8;    // of the first alone: nor is the second
constexpr double kRuinous = 0.5;      // in mid-interval: nor is the rest of it
// Trials that fail may cost one part in so many of a job's time.
constexpr Nanos kCostOfTrials = 100;
constexpr Nanos kShortQueueing = kMillisecond;
// Of the time to a result, queueing takes half on a full link (it is seen on the way there only),
// and an eighth where the processors of all hosts are the limit.
constexpr double kQueueingOnAFullLink = 0.25;
constexpr Nanos kLeastInterval = 15 * kMillisecond;
constexpr Nanos kFirstPause = 200 * kMillisecond;
constexpr Nanos kLongestPause = 60 * kSecond;
constexpr Nanos kCongestionPause = 5 * kSecond;
constexpr Nanos kOneEvent = kSecond;
constexpr uint32_t kLossesThatCount = 3;

}  // namespace

CreditController::CreditController(uint16_t initial, uint16_t maximum, bool fixed,
                                   size_t segment_bytes)
    : base_(std::max<uint16_t>(initial, 1)),
      maximum_(std::max(base_, maximum)),
      fixed_(fixed),
      segment_bytes_(segment_bytes),
      shrink_pause_(kCongestionPause),
      pause_(kFirstPause) {
  begin_interval();
}

void CreditController::on_queueing(Nanos delay, Nanos shortest) {
  queueing_ = delay;
  queued_ += delay;
  shortest_ += shortest;
  ++reports_;
}

Nanos CreditController::mean_queueing() const {
  return reports_ == 0 ? queueing_ : queued_ / static_cast<Nanos>(reports_);
}

Nanos CreditController::mean_shortest() const {
  return reports_ == 0 ? 0 : shortest_ / static_cast<Nanos>(reports_);
}

// Little's law: what is outstanding on average is the rate of results times the time to a result.
Nanos CreditController::mean_response() const {
  return answered_ == 0 ? 0 : static_cast<Nanos>(waited_ / static_cast<double>(answered_));
}

// All are means over the same time: the larger window makes them longer.
bool CreditController::link_is_full() const {
  const auto queueing = static_cast<double>(mean_queueing());
  return queueing_ > kShortQueueing &&
         queueing > kQueueingOnAFullLink * static_cast<double>(mean_response());
}

void CreditController::on_start() { settle_ = std::max(settle_, turn(credit())); }

size_t CreditController::turn(uint16_t window) const {
  const auto flows = static_cast<double>(flows_);
  const double known = carried_ > 0 ? carried_ : carrying_;
  const double carrying = known > 0 ? std::min(known, flows) : flows;
  return static_cast<size_t>(carrying * static_cast<double>(segment_bytes_ * window));
}

// Results of frames sent under the old credit pass by first, then at least a few windows are
// counted.
void CreditController::begin_interval() {
  carried_ = std::exchange(carrying_, 0);
  settle_ = 2 * turn(larger());
  bytes_ = 0;
  busy_ = 0;
}

void CreditController::on_progress(size_t bytes, Nanos busy, size_t outstanding, Nanos now) {
  if (fixed_ || (!shrinking_ && base_ >= maximum_)) return;
  if (trying_) tried_for_ += busy;
  // Just after a change, windows of before are outstanding too.
  if (settle_ == 0 || carried_ == 0) {
    carrying_ = std::max(carrying_, static_cast<double>(outstanding) /
                                        static_cast<double>(segment_bytes_ * credit()));
  }
  if (settle_ > 0) {
    if (carried_ == 0) settle_ = std::min(settle_, 2 * turn(larger()));
    settle_ -= std::min(settle_, bytes);
    return;
  }
  waited_ += static_cast<double>(outstanding) * static_cast<double>(busy);
  answered_ += bytes;
  if (!shrinking_ && now < next_trial_) return;
  bytes_ += bytes;
  busy_ += busy;
  // Half the pace is evidence enough, and a trial costs only itself.
  if (trying_ && !shrinking_ && intervals_ % 2 == 1 &&
      static_cast<double>(bytes_) / goodput_ < kRuinous * to_seconds(busy_) &&
      busy_ >= kLeastInterval) {
    last_gain_ = static_cast<double>(bytes_) / goodput_ / to_seconds(busy_);
    add_cost(last_gain_);
    return finish_trial(now, false);
  }
  const size_t enough = std::max<size_t>(4 * turn(larger()), 256 << 10);
  if (bytes_ >= enough && busy_ >= kLeastInterval) finish_interval(now);
}

void CreditController::finish_interval(Nanos now) {
  const double before = goodput_;
  goodput_ = static_cast<double>(bytes_) / to_seconds(busy_);
  if (intervals_ % 2 == 1) {
    gains_[intervals_ / 2] = trying_ ? goodput_ / before : before / goodput_;
    add_cost(gains_[intervals_ / 2]);
  }
  ++intervals_;
  trying_ = (intervals_ + 1) / 2 % 2 == 1;
  if (intervals_ % 2 == 0 && end_trial(now, intervals_ / 2)) return;
  begin_interval();
}

void CreditController::add_cost(double gain) {
  const Nanos tried = std::exchange(tried_for_, 0);
  if (gain < 1) cost_ += static_cast<Nanos>(static_cast<double>(tried) * (1 - gain));
}

// Whether the trial has ended with this pair. One alone may have met a hiccup of the machine, so
// that a gain takes two that are clear, or the median of all. On a full link what looks like a gain
// may be the rhythm in which gradients come in bursts: one that is real shows in every pair.
bool CreditController::end_trial(Nanos now, size_t pairs) {
  const double gain = gains_[pairs - 1];
  const double both = pairs == 2 ? gains_[0] * gains_[1] : 1;
  const bool last = pairs == gains_.size();
  last_gain_ = gain;
  if (shrinking_) {
    if (pairs == 2) finish_trial(now, both >= kClearLoss);
    return pairs == 2;
  }
  if ((pairs == 1 && gain < kPlainLoss) || both < kClearLoss) {
    finish_trial(now, false);
  } else if (link_is_full()) {
    if (gain >= kSmallGain && !last) return false;
    finish_trial(now, gain >= kSmallGain);
  } else if (pairs == 2 && std::min(gains_[0], gains_[1]) >= kClearGain) {
    finish_trial(now, true);
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
  if (std::exchange(shrinking_, false)) {
    if (keep) {
      base_ /= 2;
      hold(now, kCongestionPause);
      shrink_pause_ = kCongestionPause;
    } else {
      next_shrink_ = now + shrink_pause_;
      shrink_pause_ = std::min(2 * shrink_pause_, kLongestPause);
    }
  } else {
    grew_at_ = now;
    if (keep) {
      base_ = larger();
      pause_ = kFirstPause;
    } else {
      hold(now, std::min(kCostOfTrials * cost_, kLongestPause));
    }
  }
  cost_ = tried_for_ = 0;
  begin_observation();
}

void CreditController::begin_observation() {
  queued_ = shortest_ = 0;
  reports_ = 0;
  waited_ = 0;
  answered_ = 0;
  begin_interval();
}

void CreditController::hold(Nanos now, Nanos least) {
  next_trial_ = now + std::max(pause_, least);
  pause_ = std::min(2 * std::max(pause_, least), kLongestPause);
}

// Losses are no congestion by themselves: some paths lose packets whatever their load. A window
// that overruns a switch is larger than the path, and half of it moves as much; where it moves
// clearly less, the losses are not its doing.
void CreditController::on_losses(uint32_t count, Nanos now) {
  if (fixed_) return;
  // One event shows up in several counters over several round trips.
  if (now >= event_until_) {
    event_until_ = now + kOneEvent;
    losses_ = 0;
    blames_trial_ = trying_ || now < grew_at_ + kOneEvent;
  }
  const uint32_t before = std::exchange(losses_, losses_ + std::min(count, kLossesThatCount));
  if (before >= kLossesThatCount || losses_ < kLossesThatCount || shrinking_) return;
  if (blames_trial_ || base_ == 1 || now < next_shrink_) return;  // a trial costs only itself
  trying_ = false;
  intervals_ = 0;
  shrinking_ = true;
  begin_interval();
}

}  // namespace herring::worker
