// An event loop: tasks, timers and what the transport brings, all on one thread at a time. Any
// other thread may call post() and stop(). Each loop has its own time: EpollLoop reads the system's
// clock, and a loop in virtual time that of a simulation. Nothing else in the core reads a clock.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace herring::transport {

class EventLoop {
 public:
  using Task = std::function<void()>;
  using TimerId = uint64_t;

  EventLoop() = default;
  virtual ~EventLoop() = default;
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  virtual Nanos now() const = 0;

  // Runs the loop on its own thread until join(). top and gdb show `name` (at most 15 characters).
  // Other threads get all signals. Throws std::system_error if the system has no thread.
  virtual void start(const std::string& name) = 0;
  // Ends the loop after what is queued, and waits for that end. Must not be called inside the loop.
  virtual void join() = 0;
  virtual bool in_loop_thread() const = 0;
  // Returns false in a forked child: the thread does not exist there, so nothing may be posted or
  // waited for.
  virtual bool here() const = 0;
  // Returns whether this process started a thread for the loop, so that another thread can wait for
  // what the loop does. False in a forked child.
  virtual bool has_thread() const = 0;

  // Ends the loop after what is queued. Needs no memory, so an end always succeeds.
  void stop() {
    stop_now();
    wake();
  }
  // Queues a task for the loop thread and wakes the thread if needed. Tasks posted before the loop
  // runs wait for it. After the end of the loop, the task is dropped and post() returns false. A
  // task for which post() returned true runs.
  bool post(Task task);
  // Runs `call` on the loop thread and returns its result; this is the only way to wait for a loop.
  // Returns nothing, at once, if no thread runs the loop: it was not started, it has ended, or this
  // is a forked child. Inside the loop, `call` runs directly. What `call` throws reaches the caller
  // and the loop.
  template <typename Call>
  auto ask(const Call& call) -> std::optional<decltype(call())> {
    std::optional<decltype(call())> answer;
    run_and_wait([&] { answer.emplace(call()); });
    return answer;
  }
  // Like post(), for a caller that is about to call drive(): does not wake the loop. A caller that
  // then does not drive must call wake_for_tasks(); otherwise the task waits for the next event.
  virtual bool post_before_drive(Task task) = 0;
  void wake_for_tasks();
  // Runs the loop on the calling thread, while its own thread sleeps, until `until()`, `deadline`,
  // stop() or a signal. Returns false if that is impossible: another thread drives the loop
  // already, or the loop has not started or has ended. An exception from a callback ends the
  // process, since nobody could continue half an iteration.
  virtual bool drive(Nanos deadline, const std::function<bool()>& until) noexcept = 0;
  // Makes the thread that drives the loop check `until()` again, after a thread other than the
  // loop's has made it true. What `until()` reads must be written before this call, and be written
  // and read with sequential consistency.
  virtual void rouse_driver() = 0;

  // `handler` runs on the loop thread when a task, timer or handler throws because memory, threads
  // or descriptors have run out. That callback is half done, and the loop goes on. Set this before
  // the loop runs. Without a handler, the exception ends run(), and the process if the loop has its
  // own thread.
  void on_exhausted(std::function<void(const Status&)> handler) {
    exhausted_ = std::move(handler);
  }

  // The methods below are for the loop thread only (or before the loop runs).

  TimerId call_at(Nanos when, Task task);
  TimerId call_after(Nanos delay, Task task) { return call_at(now() + delay, std::move(task)); }
  void cancel(TimerId id);
  // Runs `task` once at the end of the current iteration, so that output is collected first and
  // written then.
  void at_iteration_end(Task* task) { deferred_.push_back(task); }
  // Withdraws a deferred task, because its owner is about to be destroyed.
  void forget(const Task* task);

  uint64_t wakeups() const { return wakeups_; }

 protected:
  static constexpr Nanos kNoTimer = INT64_MAX;

  // Makes an iteration follow soon. Any thread.
  virtual void wake() = 0;
  virtual void stop_now() = 0;
  // Like post_before_drive(). The caller must wake the thread that is to run the task.
  bool queue(Task task);
  bool has_tasks();
  Nanos next_timer() const { return timers_.empty() ? kNoTimer : timers_.begin()->first.first; }
  void run_tasks();
  void run_timers();
  void run_deferred();
  // Runs what is queued, and what those tasks queue. No task is accepted afterwards.
  void run_to_end();
  // Ends the loop: nothing runs any more, and queued tasks are dropped.
  void end();
  // Runs `call`, and passes what it throws to the on_exhausted() handler.
  template <typename Call>
  void attempt(Call&& call) {
    try {
      call();
    } catch (const std::exception& error) {
      if (!exhausted_) throw;
      exhausted_(status_of(error));
    }
  }

  uint64_t wakeups_ = 0;

 private:
  // Runs `call` for ask(), or does nothing if nobody can.
  void run_and_wait(const Task& call);

  std::map<std::pair<Nanos, TimerId>, Task> timers_;
  std::map<TimerId, Nanos> timer_times_;
  TimerId next_timer_ = 1;
  std::vector<Task*> deferred_, running_deferred_;
  std::function<void(const Status&)> exhausted_;

  std::mutex mutex_;
  std::vector<Task> tasks_;  // guarded by mutex_
  bool awake_ = false;       // guarded by mutex_: a wake-up is on its way
  bool ended_ = false;       // guarded by mutex_: nothing will run any more
};

}  // namespace herring::transport
