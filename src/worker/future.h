// A result that a caller waits for. The engine or the thread that watches devices sets it once; any
// thread may read it. A waiting thread drives the engine's loop, unless another one already does.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/continuations.h"
#include "base/status.h"
#include "transport/event_loop.h"

namespace herring::worker {

// Where a continuation runs: on the engine's thread, or on a thread of its own, which may wait for
// other results.
enum class Where { kEngine, kThread };

class Future {
 public:
  explicit Future(std::shared_ptr<transport::EventLoop> loop) : loop_(std::move(loop)) {}

  bool done() const { return done_.load(); }

  void set(Status status) {
    std::vector<std::function<void()>> then;
    {
      std::lock_guard lock(mutex_);
      if (done()) return;
      status_ = std::move(status);
      done_.store(true);
      then = std::move(then_);
    }
    changed_.notify_all();
    if (!loop_->in_loop_thread()) loop_->rouse_driver();
    for (const auto& callback : then) callback();
  }

  // Calls `callback` once the future is done. With kEngine, the call may happen at once and must
  // not block.
  void then(Where where, std::function<void()> callback) {
    if (where == Where::kThread) {
      callback = [callback = std::move(callback)] { Continuations::shared().put(callback); };
    }
    if (!then_unless_done(callback)) callback();
  }

  // Arranges to call `callback` on the engine's thread. Returns false and calls nothing if the
  // future is already done.
  bool then_unless_done(std::function<void()> callback) {
    std::lock_guard lock(mutex_);
    if (done()) return false;
    then_.push_back(std::move(callback));
    return true;
  }

  // Waits for the result. Returns false if it is not done within `wait`, or if a signal arrived.
  bool wait_for(Nanos wait) {
    const auto is_done = [this] { return done(); };
    if (done()) return true;
    const Nanos now = loop_->now();
    if (waits_since(now) == 0) waits_since_.store(now, std::memory_order_relaxed);
    waits_until_.store(now + wait + kBetweenWaits, std::memory_order_relaxed);
    if (loop_->drive(now + wait, is_done)) return done();
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::nanoseconds(wait), is_done);
  }

  // Notes that a program waits for the result, without a thread in wait_for(). Any thread.
  void note_program_waits() {
    waits_since_.store(loop_->now(), std::memory_order_relaxed);
    waits_until_.store(std::numeric_limits<Nanos>::max(), std::memory_order_relaxed);
  }

  // Returns the time since which a thread or program has waited; 0 if none does. Threads wait in
  // slices, so a short gap between two slices still counts as waiting.
  Nanos waits_since(Nanos now) const {
    if (done() || waits_until_.load(std::memory_order_relaxed) < now) return 0;
    return waits_since_.load(std::memory_order_relaxed);
  }

  // Returns the loop of the engine that completes this future.
  const transport::EventLoop& loop() const { return *loop_; }
  const std::shared_ptr<transport::EventLoop>& loop_of() const { return loop_; }

  // Valid only once done().
  const Status& status() const { return status_; }

 private:
  static constexpr Nanos kBetweenWaits = kSecond;

  const std::shared_ptr<transport::EventLoop> loop_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> done_{false};
  std::atomic<Nanos> waits_since_{0}, waits_until_{0};
  Status status_;
  std::vector<std::function<void()>> then_;  // guarded by mutex_
};

}  // namespace herring::worker
