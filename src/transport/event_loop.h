// One epoll loop. All callbacks run on the thread that runs it; post() and stop() may be called
// from any other. A caller who waits for something that the loop will bring may drive() a loop that
// is made for it: one thread less is to be woken before the result is there.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/fork_guard.h"

namespace herring::transport {

class EventHandler {
 public:
  virtual ~EventHandler() = default;
  virtual void on_events(uint32_t epoll_events) = 0;
};

class EventLoop {
 public:
  using Task = std::function<void()>;
  using TimerId = uint64_t;

  enum class Drivers { kOwnThread, kWaitersToo };
  explicit EventLoop(Drivers drivers = Drivers::kOwnThread);
  ~EventLoop();

  // Runs until stop(); the calling thread owns the loop from then on. The name (at most 15
  // characters) is what top and gdb show for the thread.
  void run(const char* thread_name = nullptr);
  void stop();
  // Queues a task for the loop thread; wakes it when needed. Tasks posted before run() wait for it;
  // false, and the task is dropped, after its end.
  bool post(Task task);
  // Likewise, by a caller who will drive() at once: nobody is woken. Who then does not drive calls
  // wake_for_tasks(); otherwise they wait for the next event.
  bool post_before_drive(Task task);
  void wake_for_tasks();
  // Runs the loop on the calling thread, while its own thread sleeps, until `until()`, `deadline`,
  // stop() or a signal. False: it cannot, as another thread does so already, or the loop has ended.
  // Only between run() and the end of the loop, else false. What a callback throws ends the
  // process: nobody could go on with half an iteration.
  bool drive(Nanos deadline, const std::function<bool()>& until) noexcept;
  bool in_loop_thread() const;

  // Below: loop thread only (or before run()).
  void add(int fd, uint32_t epoll_events, EventHandler* handler);
  void modify(int fd, uint32_t epoll_events);
  void remove(int fd);
  TimerId call_at(Nanos when, Task task);
  TimerId call_after(Nanos delay, Task task) { return call_at(monotonic_now() + delay, task); }
  void cancel(TimerId id);
  // Runs `task` once at the end of the current iteration: output is gathered first, written then.
  void at_iteration_end(Task* task) { deferred_.push_back(task); }
  // Takes a deferred task back (its owner goes away).
  void forget(const Task* task);

  uint64_t wakeups() const { return wakeups_; }

 private:
  void wake();
  // False: a signal came.
  bool iterate(int timeout_ms);
  void run_with_drivers(std::unique_lock<std::mutex>& running);
  void listen(bool on);
  int next_timeout_ms();
  void run_tasks();
  void run_timers();
  void run_deferred();

  GuardedFd epoll_;
  GuardedFd wake_;
  struct Watched {
    EventHandler* handler = nullptr;
    // Tells what was added from what had the same number before: an event of that one may still be
    // among those of this iteration.
    uint32_t generation = 0;
  };
  uint64_t tag(int fd) const;
  std::vector<Watched> watched_;  // by descriptor
  std::map<std::pair<Nanos, TimerId>, Task> timers_;
  std::map<TimerId, Nanos> timer_times_;
  TimerId next_timer_ = 1;
  std::vector<Task*> deferred_, running_deferred_;

  std::mutex mutex_;
  std::vector<Task> tasks_;  // guarded by mutex_
  bool awake_ = false;       // guarded by mutex_: a wake-up is on its way
  bool ended_ = false;       // guarded by mutex_: nothing will run any more
  std::atomic<bool> stopping_{false};
  std::atomic<std::thread::id> owner_{};
  uint64_t wakeups_ = 0;

  // With drivers: what is above belongs to whoever holds running_. The loop's own thread waits for
  // epoll_ to become readable, so that it can be left asleep (listen) while another waits in it.
  const bool lends_;
  const uint32_t generation_ = fork_generation();
  GuardedFd bell_;
  std::mutex running_;
  std::condition_variable handed_back_;
  std::atomic<bool> driven_{false};  // or about to be
  bool started_ = false, parked_ = false;
  std::atomic<Nanos> asleep_until_{0};  // the loop's own thread, unless something happens
};

}  // namespace herring::transport
