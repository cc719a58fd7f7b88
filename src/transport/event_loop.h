// One epoll loop, owned by one thread. All callbacks run on that thread; post() and stop() may be
// called from any other.
#pragma once

#include <atomic>
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

  EventLoop();
  ~EventLoop();

  // Runs until stop(); the calling thread owns the loop from then on. The name (at most 15
  // characters) is what top and gdb show for the thread.
  void run(const char* thread_name = nullptr);
  void stop();
  // Queues a task for the loop thread; wakes it when needed. Tasks posted before run() wait for it.
  void post(Task task);
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
  int next_timeout_ms();
  void run_tasks();
  void run_timers();
  void run_deferred();

  GuardedFd epoll_;
  GuardedFd wake_;
  std::vector<EventHandler*> handlers_;  // by descriptor
  std::map<std::pair<Nanos, TimerId>, Task> timers_;
  std::map<TimerId, Nanos> timer_times_;
  TimerId next_timer_ = 1;
  std::vector<Task*> deferred_, running_deferred_;

  std::mutex mutex_;
  std::vector<Task> tasks_;  // guarded by mutex_
  bool awake_ = false;       // guarded by mutex_: a wake-up is on its way
  std::atomic<bool> stopping_{false};
  std::atomic<std::thread::id> owner_{};
  uint64_t wakeups_ = 0;
};

}  // namespace herring::transport
