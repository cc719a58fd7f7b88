// Threads that run what follows a result.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>

namespace herring {

// Runs tasks that may wait for one another: a thread is added whenever none is free. The engine
// thread cannot run them, because a task may do anything, including waiting for another result.
class Continuations {
 public:
  // The instance of this process, which is never destroyed.
  static Continuations& shared();

  void put(std::function<void()> task);
  // Returns whether no task runs or waits for its thread. Any thread; takes no lock, because a
  // child may be forked at that moment, and would find it taken for ever.
  static bool idle() { return tasks_.load(std::memory_order_acquire) == 0; }

 private:
  void serve();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;  // guarded by mutex_
  size_t idle_ = 0;                          // threads without a task; guarded by mutex_
  static constinit inline std::atomic<size_t> tasks_{0};  // that are not over
};

}  // namespace herring
