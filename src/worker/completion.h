// What a caller waits on: set once by the engine, read by any thread. Who waits drives the engine's
// loop meanwhile, if nobody else does.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "transport/event_loop.h"

namespace herring::worker {

class Completion {
 public:
  explicit Completion(std::shared_ptr<transport::EventLoop> loop) : loop_(std::move(loop)) {}

  bool done() const { return done_.load(std::memory_order_acquire); }

  void set(Status status) {
    std::vector<std::function<void()>> then;
    {
      std::lock_guard lock(mutex_);
      if (done()) return;
      status_ = std::move(status);
      done_.store(true, std::memory_order_release);
      then = std::move(then_);
    }
    changed_.notify_all();
    for (const auto& callback : then) callback();
  }

  // Calls `callback` once it is done: on the engine's thread, or at once. It must not block.
  void then(std::function<void()> callback) {
    if (!then_unless_done(callback)) callback();
  }

  // Likewise, but false, and nothing is called, if it is done already.
  bool then_unless_done(std::function<void()> callback) {
    std::lock_guard lock(mutex_);
    if (done()) return false;
    then_.push_back(std::move(callback));
    return true;
  }

  // False: not done within `wait`, or a signal came.
  bool wait_for(Nanos wait) {
    const auto is_done = [this] { return done(); };
    if (done() || loop_->drive(loop_->now() + wait, is_done)) return done();
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::nanoseconds(wait), is_done);
  }

  // The loop of the engine that completes it.
  const transport::EventLoop& loop() const { return *loop_; }

  // Once done() only.
  const Status& status() const { return status_; }

 private:
  const std::shared_ptr<transport::EventLoop> loop_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> done_{false};
  Status status_;
  std::vector<std::function<void()>> then_;  // guarded by mutex_
};

}  // namespace herring::worker
