// One loop: tasks, timers and what its transport brings, all on one thread at a time. post() and
// stop() may be called from any other. The time is the loop's own: EpollLoop reads the system's
// clock, a loop in virtual time a simulation's, and nothing else in the core reads any.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <future>
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

  // Runs the loop on a thread of its own until join(). `name` (at most 15 characters) is what top
  // and gdb show. All signals stay with the other threads. Throws std::system_error if the system
  // has no thread.
  virtual void start(const std::string& name) = 0;
  // Ends the loop after what is queued, and waits for that. Not from inside the loop.
  virtual void join() = 0;
  virtual bool in_loop_thread() const = 0;
  // False in a forked child: the thread does not exist there, nothing may be posted or waited for.
  virtual bool here() const = 0;
  // A thread of its own was started for it here, so another thread can wait for what it does. False
  // in a forked child.
  virtual bool has_thread() const = 0;

  // Ends the loop after what is queued. It needs no memory, so that an end always succeeds.
  void stop() {
    stop_now();
    wake();
  }
  // Queues a task for the loop thread; wakes it when needed. Tasks posted before the loop runs wait
  // for it; false, and the task is dropped, after its end. Whatever true was returned for runs.
  bool post(Task task);
  // What `call` returns on the loop thread; the only way to wait for a loop. Nothing, at once, if
  // no thread runs the loop: it was not started, it has ended, or this is a forked child. A call
  // from inside the loop is made directly. What `call` throws reaches the caller and the loop.
  template <typename Call>
  auto ask(const Call& call) -> std::optional<decltype(call())> {
    if (in_loop_thread()) return call();
    if (!has_thread()) return std::nullopt;
    std::promise<decltype(call())> answer;
    auto result = answer.get_future();
    const bool asked = post([&] {
      try {
        answer.set_value(call());
      } catch (const std::exception&) {
        answer.set_exception(std::current_exception());
        throw;
      }
    });
    if (!asked) return std::nullopt;
    return result.get();
  }
  // Like post(), for a caller that is about to drive(): nobody is woken. A caller that then does
  // not drive calls wake_for_tasks(); otherwise the task waits for the next event.
  virtual bool post_before_drive(Task task) = 0;
  void wake_for_tasks();
  // Runs the loop on the calling thread, while its own thread sleeps, until `until()`, `deadline`,
  // stop() or a signal. False: it cannot, as another thread does so already, or the loop has ended.
  // Only between start() and the end of the loop, else false. What a callback throws ends the
  // process: nobody could go on with half an iteration.
  virtual bool drive(Nanos deadline, const std::function<bool()>& until) noexcept = 0;
  // Has whoever drives the loop ask `until()` again: for what another thread than the loop's has
  // made true. What `until()` reads was written before, and both in sequential consistency.
  virtual void rouse_driver() = 0;

  // Called on the loop thread when a task, a timer or a handler throws because memory, threads or
  // descriptors have run out: it is half done, and the loop goes on. Set before the loop runs.
  // Without it the exception ends run(), and with it the process if the loop has its own thread.
  void on_exhausted(std::function<void(const Status&)> handler) {
    exhausted_ = std::move(handler);
  }

  // Below: loop thread only (or before the loop runs).

  TimerId call_at(Nanos when, Task task);
  TimerId call_after(Nanos delay, Task task) { return call_at(now() + delay, std::move(task)); }
  void cancel(TimerId id);
  // Runs `task` once at the end of the current iteration: output is gathered first, written then.
  void at_iteration_end(Task* task) { deferred_.push_back(task); }
  // Takes a deferred task back (its owner goes away).
  void forget(const Task* task);

  uint64_t wakeups() const { return wakeups_; }

 protected:
  static constexpr Nanos kNoTimer = INT64_MAX;

  // Sees to it that an iteration follows soon; any thread.
  virtual void wake() = 0;
  virtual void stop_now() = 0;
  // As post_before_drive(); the caller wakes whoever is to run it.
  bool queue(Task task);
  bool has_tasks();
  Nanos next_timer() const { return timers_.empty() ? kNoTimer : timers_.begin()->first.first; }
  void run_tasks();
  void run_timers();
  void run_deferred();
  // Runs what is queued, and what that queues; then nothing is taken any more.
  void run_to_end();
  // Nothing runs any more; what is queued still is dropped.
  void end();
  // Calls it; what it throws is told to on_exhausted().
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
