// Wakes a thread of another language that waits for something to do.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "base/clock.h"

namespace herring {

// What such a thread waits for. It cannot wait inside a ForkSection, so a fork may copy this mutex
// while it is locked. A child must make another Wake and never touch the copy. Thread-safe.
class Wake {
 public:
  void ring() {
    {
      std::lock_guard lock(mutex_);
      ++count_;
    }
    changed_.notify_all();
  }
  uint64_t count() {
    std::lock_guard lock(mutex_);
    return count_;
  }
  // Waits until the count differs from `seen`.
  void wait(uint64_t seen) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return count_ != seen; });
  }
  // Returns false if the count is still `seen` after `patience`.
  bool wait_for(uint64_t seen, Nanos patience) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::nanoseconds(patience),
                             [&] { return count_ != seen; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t count_ = 0;
};

}  // namespace herring
