// Threads for what follows a result.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>

namespace herring {

// Runs tasks that may wait for each other's: a thread is added whenever none is free. Not the
// engine's, since what follows a result may be anything, waiting for another result too.
class Continuations {
 public:
  // The process's; never destroyed.
  static Continuations& shared();

  void put(std::function<void()> task);

 private:
  void serve();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;  // guarded by mutex_
  size_t idle_ = 0;                          // threads; guarded by mutex_
};

}  // namespace herring
