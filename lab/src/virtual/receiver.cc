#include "virtual/receiver.h"

#include <algorithm>

namespace herring::transport::virtual_time {

bool Receiver::on_packet(uint64_t number, bool push, Nanos stamp, Nanos now) {
  // RFC 7323, section 4.3: echo the stamp of the packet that is acknowledged next, not of the
  // latest.
  if (number <= acknowledged_packets_) stamp_ = std::max(stamp_, stamp);
  any_arrived_ = true;
  last_arrival_ = now;
  pending_ = true;
  pushed_ |= push;
  if (number < expected_ || (number < end_ && arrived_.test(number))) {
    came_again_ = at_once_ = true;
    answers_ = false;
    eager_ = kEager;
    return false;
  }
  if (number > expected_) {
    arrived_.reserve(expected_, number + 1);
    arrived_.set(number);
    end_ = std::max(end_, number + 1);
    add_run(number);
    at_once_ = true;
    return false;
  }
  ++expected_;
  if (end_ <= expected_) {
    end_ = expected_;
    return true;
  }
  // The packet lies within or before packets that came out of order.
  at_once_ = true;
  const uint64_t in_order = arrived_.next_clear(expected_, end_);
  for (; expected_ < in_order; ++expected_) arrived_.clear(expected_);
  uint32_t kept = 0;
  for (uint32_t i = 0; i < run_count_; ++i) {
    if (runs_[i].begin >= expected_) runs_[kept++] = runs_[i];
  }
  run_count_ = kept;
  return true;
}

void Receiver::add_run(uint64_t number) {
  const Run run{arrived_.run_begin(number, expected_), arrived_.next_clear(number, end_)};
  // The new run replaces runs that it extends or joins; otherwise it replaces the oldest run.
  uint32_t kept = 0;
  Run others[kKept];
  for (uint32_t i = 0; i < run_count_; ++i) {
    if (runs_[i].begin > run.end || runs_[i].end < run.begin) others[kept++] = runs_[i];
  }
  kept = std::min(kept, kKept - 1);
  runs_[0] = run;
  std::copy_n(others, kept, runs_ + 1);
  run_count_ = kept + 1;
}

bool Receiver::wants_ack(Nanos now) {
  if (!pending_) return false;
  if (at_once_ || total_ - acknowledged_ > settings_->segment() || (eager_ > 0 && !answers_)) {
    return true;
  }
  if (deadline_ == kNever) deadline_ = now + ack_delay_;
  return false;
}

void Receiver::fill(Ack* ack) {
  ack->cumulative = expected_;
  ack->echo = stamp_;
  ack->count = 0;
  ack->duplicate = came_again_;
  // The report of a second copy takes the place of a run.
  const uint32_t most = std::min(run_count_, Ack::kBlocks - came_again_);
  for (; ack->count < most; ++ack->count) {
    const Run& run = runs_[ack->count];
    ack->blocks[ack->count] = {static_cast<uint32_t>(run.begin - expected_),
                               static_cast<uint32_t>(run.end - expected_)};
  }
}

void Receiver::acknowledged(bool with_data, Nanos now) {
  if (eager_ > 0 && pending_) --eager_;
  if (with_data && any_arrived_ && now - last_arrival_ < ack_delay_) answers_ = true;
  pending_ = at_once_ = pushed_ = came_again_ = false;
  acknowledged_ = total_;
  acknowledged_packets_ = expected_;
  deadline_ = kNever;
}

void Receiver::on_deadline() {
  at_once_ = pending_;
  answers_ = false;
  deadline_ = kNever;
}

}  // namespace herring::transport::virtual_time
