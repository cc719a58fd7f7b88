#include "virtual/congestion.h"

#include <algorithm>
#include <cmath>

namespace herring::transport::virtual_time {

namespace {

using Control = StreamSettings::Control;

// Constants of RFC 9438, sections 4.1 and 4.6.
constexpr double kCubicScale = 0.4;  // packets per cubic second
constexpr double kCubicKeep = 0.7;
// Constants of HyStart in Linux (tcp_cubic.c).
constexpr uint32_t kQueueLeastWindow = 16;
constexpr uint32_t kQueueSamples = 8;
constexpr Nanos kQueueLeast = 4 * kMillisecond, kQueueMost = 16 * kMillisecond;
constexpr Nanos kTrainGap = 2 * kMillisecond;

}  // namespace

void Congestion::on_round_trip(Nanos rtt, uint64_t first, uint64_t next, Nanos now) {
  if (settings_->control != Control::kCubic) return;
  rtt = std::max<Nanos>(rtt, 1);
  // In the first second after a loss, round trips include a queue.
  if (epoch_ >= 0 && now - epoch_ < kSecond) return;
  if (least_rtt_ == 0 || rtt < least_rtt_) least_rtt_ = rtt;
  if (settings_->hystart && !queue_found_ && in_slow_start()) look_for_queue(rtt, first, next, now);
}

void Congestion::look_for_queue(Nanos rtt, uint64_t first, uint64_t next, Nanos now) {
  if (first > round_end_ || round_start_ == 0) {
    round_start_ = train_last_ = now;
    round_end_ = next;
    round_rtt_ = rtt;
    samples_ = 0;
  }
  if (window_ < kQueueLeastWindow) return;
  // If acknowledgements come without a gap for half a round trip, the path is full.
  if (now - train_last_ <= kTrainGap) {
    train_last_ = now;
    queue_found_ = now - round_start_ > least_rtt_ / 2;
  }
  round_rtt_ = std::min(round_rtt_, rtt);
  if (samples_ < kQueueSamples) {
    ++samples_;
  } else if (round_rtt_ > least_rtt_ + std::clamp(least_rtt_ / 8, kQueueLeast, kQueueMost)) {
    queue_found_ = true;
  }
  if (queue_found_) threshold_ = window_;
}

bool Congestion::is_limited() const {
  return limited_ || (in_slow_start() && window_ < 2 * most_out_);
}

void Congestion::on_acked(uint32_t acked, Nanos rtt, Nanos now) {
  if (unlimited() || !is_limited()) return;
  if (in_slow_start()) {
    uint32_t step = std::min(acked, threshold_ - window_);
    window_ += step;
    acked -= step;
    if (acked == 0) return;
  }
  grow(settings_->control == Control::kCubic ? cubic_interval(acked, rtt, now) : window_, acked);
}

void Congestion::grow(double packets_per_increase, uint32_t acked) {
  if (grown_ >= packets_per_increase) {  // the interval has become shorter
    grown_ = 0;
    ++window_;
  }
  grown_ += acked;
  if (grown_ < packets_per_increase) return;
  double increases = std::floor(grown_ / packets_per_increase);
  grown_ -= increases * packets_per_increase;
  window_ += static_cast<uint32_t>(increases);
}

// Returns how many packets must be acknowledged for the window to grow by one packet.
double Congestion::cubic_interval(uint32_t acked, Nanos rtt, Nanos now) {
  const double window = window_;
  reno_acked_ += acked;
  if (epoch_ < 0) {
    epoch_ = now;
    reno_acked_ = acked;
    reno_ = window;
    origin_ = std::max(greatest_, window);
    rise_ = std::cbrt((origin_ - window) / kCubicScale);
  }
  const Nanos ahead = least_rtt_ > 0 ? least_rtt_ : rtt;
  const double since = to_seconds(now - epoch_ + ahead) - rise_;
  const double target = origin_ + kCubicScale * since * since * since;
  double interval = target > window ? window / (target - window) : 100 * window;
  // Before the first loss the window grows by at least 5 % in a round trip.
  if (greatest_ == 0) interval = std::min(interval, 20.0);
  // The window that Reno with the same reduction would have reached (RFC 9438, section 4.3).
  const double per_packet = window * (1 + kCubicKeep) / (3 * (1 - kCubicKeep));
  if (reno_acked_ > per_packet) {
    const double increases = std::floor(reno_acked_ / per_packet);
    reno_acked_ -= increases * per_packet;
    reno_ += increases;
  }
  if (reno_ > window) interval = std::min(interval, window / (reno_ - window));
  return std::max(interval, 2.0);
}

void Congestion::on_sent(bool limited, uint64_t first, uint64_t next, Nanos timeout, Nanos now) {
  if (unlimited()) return;
  const uint64_t out = next - first;
  if (first >= usage_end_ || limited || (!limited_ && out > most_out_)) {
    limited_ = limited;
    most_out_ = out;
    usage_end_ = next;
  }
  if (is_limited()) {
    used_ = 0;
    full_at_ = now;
    return;
  }
  used_ = std::max(used_, out);
  if (!settings_->slow_start_after_idle || now - full_at_ < timeout) return;
  // The window was not full for a timeout, so it is unknown whether the path carries all of it.
  const uint32_t used = std::max(static_cast<uint32_t>(used_), settings_->initial_window);
  if (used < window_) {
    threshold_ = std::max(threshold_, window_ / 4 * 3);
    window_ = (window_ + used) / 2;
  }
  used_ = 0;
  full_at_ = now;
}

void Congestion::on_idle(Nanos idle, Nanos timeout, Nanos now) {
  if (unlimited()) return;
  if (epoch_ >= 0) epoch_ = std::min(epoch_ + idle, now);  // the pause does not count for the curve
  if (!settings_->slow_start_after_idle || idle <= timeout) return;
  const uint32_t restart = std::min(settings_->initial_window, window_);
  threshold_ = std::max(threshold_, window_ / 4 * 3);
  while ((idle -= timeout) > 0 && window_ > restart) window_ /= 2;
  window_ = std::max(window_, restart);
  used_ = 0;
  full_at_ = now;
}

void Congestion::remember() {
  window_before_ = window_;
  threshold_before_ = threshold_;
}

uint32_t Congestion::smaller() {
  if (settings_->control == Control::kReno) return std::max(window_ / 2, 2u);
  epoch_ = -1;
  // Fast convergence: a connection with a smaller window than last time leaves room for others.
  greatest_ = window_ < greatest_ ? window_ * (1 + kCubicKeep) / 2 : window_;
  return std::max(static_cast<uint32_t>(window_ * kCubicKeep), 2u);
}

void Congestion::begin_reduction() {
  if (unlimited()) return;
  remember();
  reduction_from_ = window_;
  reduction_delivered_ = reduction_sent_ = 0;
  threshold_ = smaller();
}

void Congestion::reduce(uint32_t in_flight, uint32_t delivered, bool advanced_without_loss) {
  if (unlimited() || delivered == 0) return;
  reduction_delivered_ += delivered;
  int64_t send = 0;
  const int64_t sent = static_cast<int64_t>(reduction_sent_);
  if (in_flight > threshold_) {
    const uint64_t share = threshold_ * reduction_delivered_ + reduction_from_ - 1;
    send = static_cast<int64_t>(share / reduction_from_) - sent;
  } else {
    send = std::max<int64_t>(static_cast<int64_t>(reduction_delivered_) - sent, delivered);
    if (advanced_without_loss) ++send;
    send = std::min<int64_t>(send, threshold_ - in_flight);
  }
  // The first retransmission is sent at once.
  send = std::max<int64_t>(send, sent > 0 ? 0 : 1);
  window_ = in_flight + static_cast<uint32_t>(send);
}

void Congestion::end_reduction() {
  if (!unlimited()) window_ = threshold_;
}

void Congestion::on_timeout(bool again) {
  if (unlimited()) return;
  if (!again) {
    remember();
    threshold_ = smaller();
  }
  window_ = 1;
  greatest_ = 0;
  epoch_ = -1;
  least_rtt_ = 0;
  queue_found_ = false;
  round_start_ = 0;
}

void Congestion::undo() {
  if (unlimited()) return;
  window_ = std::max(window_, window_before_);
  threshold_ = std::max(threshold_, threshold_before_);
}

}  // namespace herring::transport::virtual_time
