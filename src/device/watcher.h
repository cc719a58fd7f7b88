// The thread that sees what devices write into host memory, and calls what was to follow. It calls
// no driver. While nothing is expected it sleeps; else it looks, and sleeps longer and longer in
// between while nothing comes.
#pragma once

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

  // The process's; never destroyed.
  static Watcher& shared();

  Watcher() = default;
  // What is expected still is called with kShutdown.
  ~Watcher();
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

  // Starts the thread, unless it runs. std::system_error if there is none to be had.
  void start();
  // Calls `then` once the flag has the value, on the thread of this, which it must not block. Of
  // one flag, in the order of the values, in which they must be given.
  void expect(const Flag& flag, uint32_t value, Then then);
  // Calls all that is expected of a flag now, with why it does not come.
  void give_up(const Flag& flag, const Status& why);

  // Waits until all that is expected of a flag has come, and was told. Not on the thread of this.
  void settle(const Flag& flag);

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
  // Those that have come; true if there are any. With the lock.
  bool collect(std::deque<Then>& come);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<const std::atomic<uint32_t>*, Queue> queues_;  // none empty; guarded by mutex_
  bool calls_ = false;                                    // guarded by mutex_
  bool ends_ = false;                                     // guarded by mutex_
  std::atomic<uint64_t> looks_{0};
  std::thread thread_;
};

}  // namespace herring::device
