#include "transport/event_loop.h"

#include <algorithm>
#include <condition_variable>

namespace herring::transport {

bool EventLoop::post(Task task) {
  {
    std::lock_guard lock(mutex_);
    if (ended_) return false;
    tasks_.push_back(std::move(task));
    if (std::exchange(awake_, true)) return true;
  }
  wake();
  return true;
}

void EventLoop::run_and_wait(const Task& call) {
  if (in_loop_thread()) return call();
  if (!has_thread()) return;
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;  // guarded by mutex, as is what `call` threw
  std::exception_ptr thrown;
  const auto end = [&](std::exception_ptr exception) {
    // Notifies inside the lock, because all of this ends when the caller has the lock again.
    std::lock_guard lock(mutex);
    thrown = std::move(exception);
    done = true;
    changed.notify_one();
  };
  const bool asked = post([&] {
    try {
      call();
    } catch (const std::exception&) {
      end(std::current_exception());
      throw;
    }
    end(nullptr);
  });
  if (!asked) return;
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return done; });
  if (thrown) std::rethrow_exception(thrown);
}

bool EventLoop::queue(Task task) {
  std::lock_guard lock(mutex_);
  if (ended_) return false;
  tasks_.push_back(std::move(task));
  return true;
}

bool EventLoop::has_tasks() {
  std::lock_guard lock(mutex_);
  return !tasks_.empty();
}

void EventLoop::wake_for_tasks() {
  {
    std::lock_guard lock(mutex_);
    if (tasks_.empty() || std::exchange(awake_, true)) return;
  }
  wake();
}

EventLoop::TimerId EventLoop::call_at(Nanos when, Task task) {
  const TimerId id = next_timer_++;
  const auto time = timer_times_.emplace(id, when).first;
  // A timer that nobody can cancel would outlive what its task uses.
  try {
    timers_.emplace(std::make_pair(when, id), std::move(task));
  } catch (...) {
    timer_times_.erase(time);
    throw;
  }
  return id;
}

void EventLoop::cancel(TimerId id) {
  const auto found = timer_times_.find(id);
  if (found == timer_times_.end()) return;
  timers_.erase({found->second, id});
  timer_times_.erase(found);
}

void EventLoop::run_tasks() {
  std::vector<Task> tasks;
  {
    std::lock_guard lock(mutex_);
    tasks.swap(tasks_);
    awake_ = false;
  }
  for (Task& task : tasks) attempt(task);
}

void EventLoop::run_timers() {
  if (timers_.empty()) return;
  const Nanos time = now();
  while (!timers_.empty() && timers_.begin()->first.first <= time) {
    auto node = timers_.extract(timers_.begin());
    timer_times_.erase(node.key().second);
    attempt(node.mapped());
  }
}

void EventLoop::run_deferred() {
  // A deferred task may defer another task, which then runs at the end of the same iteration.
  while (!deferred_.empty()) {
    running_deferred_.swap(deferred_);
    for (size_t i = 0; i < running_deferred_.size(); ++i) {
      if (Task* task = running_deferred_[i]) attempt(*task);
    }
    running_deferred_.clear();
  }
}

void EventLoop::forget(const Task* task) {
  for (std::vector<Task*>* list : {&deferred_, &running_deferred_}) {
    std::replace(list->begin(), list->end(), const_cast<Task*>(task), static_cast<Task*>(nullptr));
  }
}

void EventLoop::run_to_end() {
  for (;;) {
    run_tasks();
    run_deferred();
    std::lock_guard lock(mutex_);
    if (!tasks_.empty()) continue;
    ended_ = true;
    return;
  }
}

void EventLoop::end() {
  std::vector<Task> late;  // destroyed outside the lock: a task may hold what holds the loop
  std::lock_guard lock(mutex_);
  ended_ = true;
  late.swap(tasks_);
}

}  // namespace herring::transport
