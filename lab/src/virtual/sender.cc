#include "virtual/sender.h"

#include <algorithm>
#include <bit>

namespace herring::transport::virtual_time {

namespace {

constexpr Nanos kFirstTimeout = kSecond;         // the path is unknown
constexpr Nanos kGreatestTimeout = 120 * kSecond;
constexpr uint32_t kThin = 4;                    // no back-off at first with fewer packets out
constexpr uint32_t kLinearTimeouts = 6;
constexpr uint32_t kDuplicates = 3;              // so many later packets show that a packet is lost
constexpr uint32_t kReorderSteps = 255;

}  // namespace

Sender::Sender(const StreamSettings& settings, Nanos rtt, Nanos now)
    : settings_(&settings),
      least_timeout_(settings.timeout_beyond(rtt)),
      congestion_(settings),
      srtt_(rtt),
      variation_(rtt / 2),
      least_rtt_(rtt),
      last_sent_(now),
      heard_(now) {}

size_t Sender::write(size_t bytes) {
  const size_t room = settings_->send_buffer - std::min(settings_->send_buffer, buffered());
  bytes = std::min(bytes, room);
  written_ += bytes;
  return bytes;
}

void Sender::stop() {
  cut_ = acknowledged_ = written_;
  finishing_ = probe_due_ = false;
  first_ = next_;  // packets under way stay in ring_, because the receiver may ask for them
  arrived_ = {};
  arrived_count_ = lost_count_ = resent_count_ = to_resend_ = 0;
  timer_ = reorder_at_ = kNever;
  kind_ = Timer::kNone;
}

void Sender::hand_over(uint64_t total, Nanos now) {
  cut_ = acknowledged_ = total;
  heard_ = now;
}

bool Sender::has_new() const {
  if (unsent() == 0) return false;
  if (first_ == next_ || settings_->receive_window == 0) return true;
  const uint64_t bytes = std::min<uint64_t>(settings_->segment(), written_ - cut_);
  const double grown = settings_->receive_growth * static_cast<double>(acknowledged_);
  return cut_ + bytes - acknowledged_ <= settings_->receive_window + static_cast<uint64_t>(grown);
}

uint32_t Sender::in_flight() const {
  return static_cast<uint32_t>(next_ - first_) - arrived_count_ - lost_count_ + resent_count_;
}

Nanos Sender::timeout() const {
  if (srtt_ == 0) return kFirstTimeout;
  return std::min(kGreatestTimeout, srtt_ + std::max(least_timeout_, 4 * variation_));
}

void Sender::reserve() {
  if (next_ - first_ < ring_.size()) return;
  std::vector<Sent> old(std::max<size_t>(16, 2 * ring_.size()));
  old.swap(ring_);
  for (uint64_t number = first_; number < next_; ++number) {
    at(number) = old[number & (old.size() - 1)];
  }
}

void Sender::cut(Nanos now, Segment* out) {
  reserve();
  const uint64_t bytes = std::min<uint64_t>(settings_->segment(), written_ - cut_);
  cut_ += bytes;
  const bool all = cut_ == written_;
  ended_ = finishing_ && all;
  *out = {next_, cut_, static_cast<uint32_t>(bytes), all, ended_};
  at(next_++) = {cut_, now, 0};
}

void Sender::send_again(uint64_t number, Nanos now, Segment* out) {
  Sent& packet = at(number);
  const uint64_t begin = number == first_ ? acknowledged_ : at(number - 1).end;
  const bool tail = packet.end == written_;
  *out = {number, packet.end, static_cast<uint32_t>(packet.end - begin), tail,
          ended_ && number + 1 == next_};
  packet.time = now;
  if (!(packet.flags & kResent)) {
    ++resent_count_;
    to_resend_ -= (packet.flags & kLost) != 0;
  }
  packet.flags |= kResent | kEver;
  again_.push_back({number, now});
  ++counters_.retransmissions;
  if (first_again_ == kNever) first_again_ = now;
}

bool Sender::next(Nanos now, Segment* out) {
  limited_ = false;
  if (probe_due_) {
    probe_due_ = false;
    ++counters_.probes;
    probe_is_copy_ = !has_new();
    if (probe_is_copy_) {
      send_again(next_ - 1, now, out);
    } else {
      cut(now, out);
    }
    probe_end_ = next_;
  } else if (to_resend_ > 0) {
    limited_ = in_flight() >= congestion_.window();
    if (limited_) return false;
    uint64_t number = std::max(look_from_, first_);
    while ((at(number).flags & (kLost | kResent)) != kLost || arrived_.test(number)) ++number;
    look_from_ = number + 1;
    send_again(number, now, out);
    congestion_.count_sent();
  } else if (has_new()) {
    limited_ = in_flight() >= congestion_.window();
    if (limited_) return false;
    if (first_ == next_ && now > last_sent_) {
      congestion_.on_idle(now - last_sent_, timeout(), now);
    }
    cut(now, out);
    congestion_.count_sent();
  } else {
    return false;
  }
  ++counters_.packets;
  last_sent_ = now;
  sent_any_ = true;
  return true;
}

void Sender::sent(Nanos now) {
  if (!sent_any_ && !limited_) return;
  const bool limited = limited_ || in_flight() >= congestion_.window();
  congestion_.on_sent(limited, first_, next_, timeout(), now);
  if (sent_any_) set_timer(false, now);
  sent_any_ = false;
}

void Sender::delivered(uint64_t number, News* news, Nanos now) {
  Sent& packet = at(number);
  ++news->delivered;
  if (packet.flags & kLost) {
    --lost_count_;
    to_resend_ -= !(packet.flags & kResent);
  }
  resent_count_ -= (packet.flags & kResent) != 0;
  highest_ = std::max(highest_, number + 1);
  const Nanos rtt = now - packet.time;
  if (packet.flags & kEver) {
    // An answer sooner than any round trip shows that the first copy was not lost.
    if (rtt < least_rtt_) return;
  } else {
    news->oldest = std::min(news->oldest, packet.time);
    news->newest = news->newest == kNever ? packet.time : std::max(news->newest, packet.time);
    if (number + 1 < news->highest) reordered_ = true;
  }
  if (packet.time > rack_time_ || (packet.time == rack_time_ && number > rack_number_)) {
    rack_time_ = packet.time;
    rack_number_ = number;
    rack_rtt_ = rtt;
    rack_moved_ = true;
  }
}

void Sender::on_ack(const Ack& ack, Nanos now) {
  heard_ = now;
  if (ack.duplicate) {
    ++counters_.spurious;
    if (reordered_) reorder_steps_ = std::min(reorder_steps_ + 1, kReorderSteps);
  }
  if (ack.cumulative < first_ || ack.cumulative > next_) return;
  News news{.highest = highest_};
  for (uint32_t i = 0; i < ack.count; ++i) {
    const uint64_t end = std::min(ack.cumulative + ack.blocks[i].end, next_);
    arrived_.reserve(first_, next_);
    for (uint64_t number = ack.cumulative + ack.blocks[i].begin;
         (number = arrived_.next_clear(number, end)) < end; ++number) {
      arrived_.set(number);
      ++arrived_count_;
      delivered(number, &news, now);
    }
  }
  news.advanced = ack.cumulative > first_;
  if (news.advanced) {
    acknowledged_ = at(ack.cumulative - 1).end;
    const bool any = arrived_count_ > 0;
    for (; first_ < ack.cumulative; ++first_) {
      if (any && arrived_.test(first_)) {
        arrived_.clear(first_);
        --arrived_count_;
      } else {
        delivered(first_, &news, now);
      }
    }
    backoff_ = timeouts_in_row_ = 0;
  }
  measure(news, ack.echo, now);
  if (probe_end_ > 0) answer_probe(ack, news.advanced);
  // A packet arrived that was sent before any retransmission, so first copies are arriving.
  if (may_undo_ && news.advanced && ack.echo < first_again_) undo(now);
  const uint32_t lost = rack_moved_ ? find_losses(now) : 0;
  steer(news, lost, now);
  if (news.delivered > 0 || lost > 0) set_timer(news.advanced, now);
}

void Sender::measure(const News& news, Nanos echo, Nanos now) {
  Nanos rtt = 0;
  if (news.oldest != kNever) {
    rtt = now - news.oldest;
    const Nanos least = now - news.newest;
    if (least_rtt_ == 0 || least < least_rtt_) least_rtt_ = least;
    congestion_.on_round_trip(least, first_, next_, now);
  } else if (news.advanced) {
    rtt = now - echo;
  }
  if (rtt <= 0) return;
  if (srtt_ == 0) {
    srtt_ = rtt;
    variation_ = rtt / 2;
    return;
  }
  const Nanos off = srtt_ > rtt ? srtt_ - rtt : rtt - srtt_;
  variation_ += (off - variation_) / 4;
  srtt_ += (rtt - srtt_) / 8;
}

void Sender::answer_probe(const Ack& ack, bool advanced) {
  if (ack.cumulative < probe_end_) return;
  if (!probe_is_copy_ || ack.duplicate) {
    probe_end_ = 0;  // all packets had arrived
  } else if (ack.cumulative > probe_end_) {
    // The receiver did not get the packet twice, so the probe replaced a lost packet.
    probe_end_ = 0;
    if (state_ == State::kOpen) {
      congestion_.begin_reduction();
      congestion_.end_reduction();
    }
  } else if (!advanced && ack.count == 0) {
    probe_end_ = 0;
  }
}

// Updates state and window after an acknowledgement, like Linux' tcp_fastretrans_alert().
void Sender::steer(const News& news, uint32_t lost, Nanos now) {
  if (state_ != State::kOpen && first_ >= high_) {
    if (state_ == State::kRecovery) congestion_.end_reduction();
    state_ = State::kOpen;
    may_undo_ = false;
  }
  if (state_ == State::kOpen && lost_count_ > 0) start_recovery();
  if (state_ == State::kRecovery) {
    congestion_.reduce(in_flight(), news.delivered, news.advanced && lost == 0);
  } else if (news.advanced && news.delivered > 0) {
    congestion_.on_acked(news.delivered, srtt_, now);
  }
}

void Sender::start_recovery() {
  state_ = State::kRecovery;
  high_ = next_;
  first_again_ = kNever;
  may_undo_ = true;
  congestion_.begin_reduction();
}

void Sender::undo(Nanos now) {
  for (uint64_t number = first_; number < next_; ++number) at(number).flags &= ~kLost;
  lost_count_ = to_resend_ = 0;
  unmarked_ = first_;
  congestion_.undo();
  state_ = State::kOpen;
  may_undo_ = false;
  set_timer(false, now);
}

void Sender::mark_lost(uint64_t number) {
  Sent& packet = at(number);
  if (packet.flags & kResent) {
    packet.flags &= ~kResent;
    --resent_count_;
    to_resend_ += (packet.flags & kLost) != 0;
  }
  if (!(packet.flags & kLost)) {
    packet.flags |= kLost;
    ++lost_count_;
    ++to_resend_;
  }
  look_from_ = std::min(look_from_, number);
}

Nanos Sender::reorder_window() const {
  if (!reordered_ && (state_ != State::kOpen || arrived_count_ >= kDuplicates)) return 0;
  return std::min(least_rtt_ / 4 * reorder_steps_, srtt_);
}

// Returns whether a packet is overdue that was sent before one that has arrived. If it is not
// overdue yet, sets the time to look again.
bool Sender::is_overdue(Nanos time, uint64_t number, Nanos window, Nanos now) {
  if (time > rack_time_ || (time == rack_time_ && number >= rack_number_)) return false;
  if (time + rack_rtt_ + window <= now) return true;
  // Timers run for at least two ticks.
  reorder_at_ = rack_time_ + rack_rtt_ + window + 2 * settings_->tick;
  return false;
}

uint32_t Sender::find_losses(Nanos now) {
  rack_moved_ = false;
  reorder_at_ = kNever;
  if (first_ == next_) return 0;
  const Nanos window = reorder_window();
  uint32_t lost = 0;
  // Packets that were sent once left in the order of their numbers; others left in that of again_.
  for (unmarked_ = std::max(unmarked_, first_); unmarked_ < next_; ++unmarked_) {
    const Sent& packet = at(unmarked_);
    if ((packet.flags & (kLost | kEver)) || arrived_.test(unmarked_)) continue;
    if (!is_overdue(packet.time, unmarked_, window, now)) break;
    mark_lost(unmarked_);
    ++lost;
  }
  for (; again_begin_ < again_.size(); ++again_begin_) {
    const Again& copy = again_[again_begin_];
    if (copy.number < first_ || arrived_.test(copy.number)) continue;
    const Sent& packet = at(copy.number);
    if (!(packet.flags & kResent) || packet.time != copy.time) continue;
    if (!is_overdue(copy.time, copy.number, window, now)) break;
    mark_lost(copy.number);
    ++lost;
  }
  // Keeps the list short with few moves.
  if (2 * again_begin_ >= again_.size()) {
    again_.erase(again_.begin(), again_.begin() + static_cast<std::ptrdiff_t>(again_begin_));
    again_begin_ = 0;
  }
  return lost;
}

void Sender::time_out(Nanos now) {
  ++counters_.timeouts;
  // After a recovery or another timeout, the window has already shrunk.
  const bool fresh = state_ == State::kOpen || (state_ == State::kLoss && timeouts_in_row_ == 0);
  congestion_.on_timeout(!fresh);
  if (fresh) {
    may_undo_ = true;
    first_again_ = kNever;
  }
  for (uint64_t number = first_; number < next_; ++number) {
    if (!arrived_.test(number)) mark_lost(number);
  }
  unmarked_ = next_;
  again_.clear();
  again_begin_ = 0;
  state_ = State::kLoss;
  high_ = next_;
  probe_end_ = 0;
  ++timeouts_in_row_;
  const bool thin = settings_->linear_timeouts && next_ - first_ < kThin;
  if (thin && timeouts_in_row_ <= kLinearTimeouts) {
    backoff_ = 0;
  } else {
    backoff_ = std::min(backoff_ + 1, 16u);
  }
  at(first_).time = now;
}

void Sender::on_deadline(Nanos now) {
  const Timer kind = kind_;
  timer_ = kNever;
  kind_ = Timer::kNone;
  if (first_ == next_) return;
  if (kind == Timer::kProbe) {
    probe_due_ = true;
  } else if (kind == Timer::kReorder) {
    const uint32_t lost = find_losses(now);
    if (lost > 0 && state_ == State::kOpen) start_recovery();
    if (lost > 0 && state_ == State::kRecovery) congestion_.reduce(in_flight(), 1, false);
    reorder_at_ = kNever;
  } else {
    time_out(now);
  }
  set_timer(false, now);
}

// Sets the next deadline. `advanced`: packets have just been acknowledged in order.
void Sender::set_timer(bool advanced, Nanos now) {
  const Nanos running = kind_ == Timer::kTimeout ? timer_ : 0;
  timer_ = kNever;
  kind_ = Timer::kNone;
  if (first_ == next_) return;
  if (reorder_at_ != kNever) {
    kind_ = Timer::kReorder;
    timer_ = std::max(reorder_at_, now + 1);
    return;
  }
  const Nanos whole = std::min(timeout() << backoff_, kGreatestTimeout);
  const Nanos last = std::max(advanced ? now + whole : at(first_).time + whole, now + 1);
  if (state_ != State::kOpen || arrived_count_ + lost_count_ > 0 || probe_end_ > 0) {
    kind_ = Timer::kTimeout;
    timer_ = advanced ? last : std::max(last, running);
    return;
  }
  // A lone packet may be waiting for a delayed acknowledgement.
  const Nanos more = next_ - first_ == 1 ? least_timeout_ : 2 * settings_->tick;
  kind_ = Timer::kProbe;
  timer_ = std::min(last, now + (srtt_ > 0 ? 2 * srtt_ + more : kFirstTimeout));
}

PathInfo Sender::path_info(Nanos now) const {
  PathInfo path;
  path.retransmits = counters_.retransmissions;
  path.spurious = counters_.spurious;
  path.rtt = srtt_;
  path.min_rtt = least_rtt_;
  path.unacknowledged = static_cast<uint32_t>(next_ - first_);
  path.acknowledged_ago = now - heard_;
  return path;
}

}  // namespace herring::transport::virtual_time
