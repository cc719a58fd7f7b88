// A path in virtual time that feeds a CreditController.
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <random>

#include "links/credit.h"

namespace herring::links {

inline constexpr size_t kPathSegment = 8192, kPathFlows = 8;

// Feeds the controller like a path whose goodput, in bytes per second, depends on the window.
class ModelPath {
 public:
  explicit ModelPath(uint16_t maximum = 128, bool fixed = false, uint16_t ladder = UINT16_MAX)
      : controller(1, maximum, fixed, kPathSegment, ladder) {
    controller.set_flows(kPathFlows);
  }

  void run(Nanos duration, const std::function<double(uint16_t)>& goodput) {
    for (const Nanos end = now + duration; now < end;) {
      const size_t bytes = kPathSegment;
      const auto took = static_cast<Nanos>(bytes / goodput(controller.credit()) * 1e9);
      now += took;
      controller.on_progress(bytes, took, kPathFlows * kPathSegment * controller.credit(), now);
    }
  }

  void transfer(size_t bytes, const std::function<double(uint16_t)>& goodput) {
    for (size_t left = bytes; left > 0; left -= kPathSegment) {
      const auto took = static_cast<Nanos>(kPathSegment / goodput(controller.credit()) * 1e9);
      now += took;
      const size_t window = kPathFlows * kPathSegment * controller.credit();
      controller.on_progress(kPathSegment, took, std::min(left, window), now);
    }
  }

  // Reports that packets queue for this share of a result's response time. Returns `goodput`.
  double queues_for(double share, double goodput) {
    const double response = kPathFlows * kPathSegment * controller.credit() / goodput;
    controller.on_queueing(static_cast<Nanos>(share * response * 1e9));
    return goodput;
  }

  CreditController controller;
  Nanos now = 0;
};

// A path through a switch port. A window that fits moves `pace` for each of its segments. A larger
// one moves somewhat more, but loses packets, and after a while a timeout stops everything. Losses
// are reported by the second poll after them, as on a real path.
class PortPath {
 public:
  PortPath(double pace, double fits, unsigned seed = 1)
      : controller(1, 128, false, kPathSegment), pace_(pace), fits_(fits), random_(seed) {
    controller.set_flows(kPathFlows);
  }

  // One segment in this many is lost, whatever the window is.
  void lose_one_in(double segments) { lost_ = 1 / segments; }
  // After a loss, the timeout comes with this probability if the window is one segment, and more
  // seldom if it is larger.
  void stop_after_loss(double probability) { stops_ = probability; }

  // Repeats transfers, each with a start of its own. Returns the bytes per second.
  double run(Nanos duration, size_t bytes = 12 << 20) {
    const Nanos began = now;
    size_t moved = 0;
    while (now < began + duration) {
      controller.on_start(now);
      for (size_t left = bytes; left > 0; left -= kPathSegment) step(left);
      moved += bytes;
    }
    return static_cast<double>(moved) / to_seconds(now - began);
  }

  CreditController controller;
  Nanos now = 0;

 private:
  void step(size_t left) {
    const double window = controller.credit();
    double took = kPathSegment / (pace_ * std::min(window, 1.5 * fits_));
    if (window > fits_) {
      overran_for_ += took;
      lose(2);
      if (overran_for_ > 0.06) took += 0.4;
      if (overran_for_ > 0.06) overran_for_ = 0;
    } else if (std::bernoulli_distribution(lost_)(random_)) {
      lose(1);
      if (std::bernoulli_distribution(stops_ / window)(random_)) took += 0.2;
    }
    now += static_cast<Nanos>(took * 1e9);
    const auto outstanding = static_cast<size_t>(kPathFlows * kPathSegment * window);
    controller.on_progress(kPathSegment, static_cast<Nanos>(took * 1e9),
                           std::min(left, outstanding), now);
    while (!losses_.empty() && losses_.front().first <= now) {
      controller.on_losses(losses_.front().second, now);
      losses_.pop_front();
    }
  }
  void lose(uint32_t count) {
    const Nanos when = now / kPoll * kPoll + 2 * kPoll;
    if (losses_.empty() || losses_.back().first != when) losses_.emplace_back(when, 0);
    losses_.back().second += count;
  }

  static constexpr Nanos kPoll = 50 * kMillisecond;
  const double pace_, fits_;
  double lost_ = 0, stops_ = 0, overran_for_ = 0;
  std::mt19937 random_;
  std::deque<std::pair<Nanos, uint32_t>> losses_;
};

}  // namespace herring::links
