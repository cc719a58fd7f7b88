#include "worker/credit.h"

#include <utility>

namespace herring::worker {
namespace {

constexpr double kClearGain = 1.03;   // enough if each of two pairs of intervals shows it
constexpr double kSmallGain = 1.015;  // enough in the median of all pairs, where no link is full
constexpr double kClearLoss = 0.9;    // of the first two pairs together: the others are not needed
// What is gained on a link that is close to full must outweigh the risk that the next burst
// overruns a switch, and be more than a noisy machine makes.
constexpr double kGainWorthAQueue = 1.08;
constexpr Nanos kShortQueueing = kMillisecond;
// Of the time to a result, queueing takes half on a full link (it is seen on the way there only),
// and an eighth where the processors of all hosts are the limit.
constexpr double kQueueingOnAFullLink = 0.25;
// Where it takes most of it, nothing can be gained; what bursts of gradients make look like a gain
// is their rhythm.
constexpr double kQueueingBeyondDoubt = 0.6;
constexpr Nanos kLeastInterval = 15 * kMillisecond;
constexpr Nanos kFirstPause = 200 * kMillisecond;
constexpr Nanos kLongestPause = 60 * kSecond;
constexpr Nanos kCongestionPause = 5 * kSecond;
constexpr Nanos kBoundedQueueingOfOne = 8 * kMillisecond;
constexpr Nanos kBoundedQueueing = 4 * kMillisecond;
// Of the shortest round trip: a long path's varies by more than the above, and a queue that is
// shorter leaves room to look whether there is more to gain.
constexpr Nanos kPathsPerLongQueue = 4;
constexpr Nanos kOneEvent = kSecond;
constexpr uint32_t kLossesThatCount = 3;

}  // namespace

CreditController::CreditController(uint16_t initial, uint16_t maximum, bool fixed,
                                   size_t segment_bytes)
    : base_(std::max<uint16_t>(initial, 1)),
      maximum_(std::max(base_, maximum)),
      fixed_(fixed),
      segment_bytes_(segment_bytes),
      pause_(kFirstPause) {
  begin_interval();
}

void CreditController::on_queueing(Nanos delay, Nanos shortest) {
  queueing_ = delay;
  path_ = shortest;
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
bool CreditController::link_is_full(double share) const {
  const auto waiting = static_cast<double>(mean_response() - mean_shortest());
  return queueing_ > kShortQueueing && static_cast<double>(mean_queueing()) > share * waiting;
}

bool CreditController::queue_is_long(Nanos least) const {
  return queueing_ > std::max(least, path_ / kPathsPerLongQueue);
}

void CreditController::on_start() {
  settle_ = std::max(settle_, flows_ * segment_bytes_ * credit());
}

// Results of frames sent under the old credit pass by first, then at least a few windows are
// counted.
void CreditController::begin_interval() {
  settle_ = 2 * flows_ * segment_bytes_ * larger();
  bytes_ = 0;
  busy_ = 0;
}

void CreditController::on_progress(size_t bytes, Nanos busy, size_t outstanding, Nanos now) {
  if (fixed_ || base_ >= maximum_) return;
  if (settle_ > 0) {
    settle_ -= std::min(settle_, bytes);
    return;
  }
  waited_ += static_cast<double>(outstanding) * static_cast<double>(busy);
  answered_ += bytes;
  if (now < next_trial_) return;
  // A queue that long is full use of the path already. (The acknowledgement of a single packet may
  // wait for the peer's process, so its round trip tells less.)
  const Nanos bounded = base_ == 1 ? kBoundedQueueingOfOne : kBoundedQueueing;
  if (intervals_ == 0 && queue_is_long(bounded) && link_is_full(kQueueingOnAFullLink)) return;
  bytes_ += bytes;
  busy_ += busy;
  const size_t enough = std::max<size_t>(4 * flows_ * segment_bytes_ * larger(), 256 << 10);
  if (bytes_ >= enough && busy_ >= kLeastInterval) finish_interval(now);
}

void CreditController::finish_interval(Nanos now) {
  if (intervals_ == 0 && queue_is_long(kShortQueueing) && link_is_full(kQueueingBeyondDoubt)) {
    hold(now, 0);
    return begin_observation();
  }
  const double before = goodput_;
  goodput_ = static_cast<double>(bytes_) / to_seconds(busy_);
  if (intervals_ % 2 == 1) gains_[intervals_ / 2] = trying_ ? goodput_ / before : before / goodput_;
  ++intervals_;
  trying_ = (intervals_ + 1) / 2 % 2 == 1;
  // One pair alone may have met a hiccup of the machine, so both of the first must be clear; to
  // tell a small gain from noise takes all, and is worth it only where a larger window makes no
  // queue at a link.
  if (intervals_ == 4) {
    last_gain_ = std::min(gains_[0], gains_[1]);
    const bool full = link_is_full(kQueueingOnAFullLink);
    if (last_gain_ >= (full ? kGainWorthAQueue : kClearGain)) return finish_trial(now, true);
    if (full || gains_[0] * gains_[1] < kClearLoss) return finish_trial(now, false);
  } else if (intervals_ == 2 * gains_.size()) {
    std::sort(gains_.begin(), gains_.end());
    last_gain_ = (gains_[2] + gains_[3]) / 2;
    return finish_trial(now, last_gain_ >= kSmallGain);
  }
  begin_interval();
}

void CreditController::finish_trial(Nanos now, bool keep) {
  trying_ = false;
  intervals_ = 0;
  ++trials_;
  last_queueing_ = mean_queueing();
  last_response_ = mean_response();
  if (keep) {
    base_ = larger();
    pause_ = kFirstPause;
  } else {
    hold(now, 0);
  }
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

void CreditController::on_losses(uint32_t count, Nanos now) {
  if (fixed_) return;
  // One event shows up in several counters over several round trips.
  if (now >= event_until_) {
    event_until_ = now + kOneEvent;
    losses_ = 0;
    blames_trial_ = trying_;
    if (intervals_ > 0 || trying_) finish_trial(now, false);
  }
  const uint32_t before = std::exchange(losses_, losses_ + std::min(count, kLossesThatCount));
  if (before >= kLossesThatCount || losses_ < kLossesThatCount) return;
  // A trial that congests costs only itself; the standing window gives way when it did.
  if (!blames_trial_) base_ = std::max<uint16_t>(1, base_ / 2);
  hold(now, kCongestionPause);
  begin_interval();
}

}  // namespace herring::worker
