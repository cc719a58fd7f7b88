// The thread that sees what devices write into host memory, and then calls the expected callbacks.
// It never calls a driver. It sleeps while nothing is expected. Otherwise it polls, at longer and
// longer intervals while nothing happens.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "base/status.h"
#include "device/flags.h"

namespace herring::device {

class Watcher {
 public:
  using Then = std::function<void(const Status&)>;

  // The watcher of this process, which is never destroyed.
  static Watcher& shared();

  Watcher() = default;
  // Calls all callbacks that are still expected with kShutdown.
  ~Watcher();
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

  // Starts the thread unless it runs. Throws std::system_error if the system has no thread left.
  void start();
  // Calls `then` on the watcher's thread, which it must not block, once the flag has reached the
  // value. The values of one flag must be given in ascending order, and their callbacks are called
  // in that order.
  void expect(const Flag& flag, uint32_t value, Then then);
  // Calls all expected callbacks of a flag now, with the reason why its values will not come.
  void give_up(const Flag& flag, const Status& why);

  // Waits until all expected values of a flag have come and their callbacks have returned. Must not
  // run on the watcher's thread.
  void settle(const Flag& flag);
  // Returns whether the caller runs on this watcher's thread.
  bool here() const;

  // Returns whether this process expects nothing of any device, and no callback runs. Any thread;
  // takes no lock, because a child may be forked at that moment, and would find it taken for ever.
  static bool idle() { return left_.load(std::memory_order_acquire) == 0; }

  uint64_t looks() const { return looks_.load(std::memory_order_relaxed); }

 private:
  struct Expected {
    uint32_t value;
    Then then;
  };
  struct Queue {
    Flag flag;
    std::deque<Expected> expected;
  };

  void run();
  // Moves the callbacks whose values have come to `come`, and returns whether there are any. The
  // caller holds the lock.
  bool collect(std::deque<Then>& come);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<const std::atomic<uint32_t>*, Queue> queues_;  // none empty; guarded by mutex_
  bool calls_ = false;                                    // guarded by mutex_
  bool ends_ = false;                                     // guarded by mutex_
  std::atomic<uint64_t> looks_{0};
  // Callbacks that have not returned yet, of all watchers.
  static constinit inline std::atomic<size_t> left_{0};
  std::thread thread_;
};

}  // namespace herring::device
