// What a caller waits on: set once by the engine, read by any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "base/clock.h"
#include "base/status.h"

namespace herring::worker {

class Completion {
 public:
  bool done() const { return done_.load(std::memory_order_acquire); }

  void set(Status status) {
    {
      std::lock_guard lock(mutex_);
      if (done()) return;
      status_ = std::move(status);
      done_.store(true, std::memory_order_release);
    }
    changed_.notify_all();
  }

  // False: not done within `wait`.
  bool wait_for(Nanos wait) {
    if (done()) return true;
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::nanoseconds(wait), [this] { return done(); });
  }

  // Once done() only.
  const Status& status() const { return status_; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> done_{false};
  Status status_;
};

}  // namespace herring::worker
