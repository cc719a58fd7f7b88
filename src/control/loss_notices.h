// Collects processes that are lost or have left until members are told. A death is told at once.
// The first process that leaves is told at once, later ones after a delay that grows with the
// number of members to tell. When all leave, each member hears of many in one message, not of each
// in its own.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "control/cluster.h"
#include "transport/event_loop.h"

namespace herring::control {

// Runs on the loop's thread.
class LossNotices {
 public:
  using Tell = std::function<void(std::vector<Loss>)>;
  LossNotices(transport::EventLoop& loop, Tell tell) : loop_(loop), tell_(std::move(tell)) {}

  // `members` is the number of members to tell.
  void add(Loss loss, size_t members) {
    const bool left = loss.left;
    losses_.push_back(std::move(loss));
    const Nanos next = told_at_ + kGather + kGatherPerMember * static_cast<Nanos>(members);
    if (!left || loop_.now() >= next) return flush();
    if (timer_ == 0) timer_ = loop_.call_at(next, [this] { flush(); });
  }

  // Tells everything that was collected.
  void flush() {
    if (timer_ != 0) loop_.cancel(std::exchange(timer_, 0));
    if (losses_.empty()) return;
    tell_(std::exchange(losses_, {}));
    told_at_ = loop_.now();
  }

 private:
  static constexpr Nanos kGather = 5 * kMillisecond, kGatherPerMember = 20 * kMicrosecond;

  transport::EventLoop& loop_;
  const Tell tell_;
  std::vector<Loss> losses_;
  transport::EventLoop::TimerId timer_ = 0;
  Nanos told_at_ = 0;
};

}  // namespace herring::control
