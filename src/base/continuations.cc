#include "base/continuations.h"

#include <pthread.h>

#include <chrono>
#include <system_error>
#include <thread>
#include <utility>

namespace herring {
namespace {

constexpr auto kIdle = std::chrono::seconds(5);  // an idle thread ends after this time

}  // namespace

Continuations& Continuations::shared() {
  static auto* const threads = new Continuations;
  return *threads;
}

void Continuations::put(std::function<void()> task) {
  bool grows = false;
  {
    std::lock_guard lock(mutex_);
    queue_.push_back(std::move(task));
    ++tasks_;
    grows = queue_.size() > idle_;
    if (grows) ++idle_;  // the new thread is idle until it takes a task
  }
  if (!grows) return changed_.notify_one();
  try {
    std::thread([this] { serve(); }).detach();
  } catch (const std::system_error&) {  // no more threads can be created: run the task here
    std::unique_lock lock(mutex_);
    --idle_;
    if (queue_.empty()) return;  // another thread has taken the task
    const std::function<void()> first = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    first();
    --tasks_;
  }
}

void Continuations::serve() {
  pthread_setname_np(pthread_self(), "herring-later");
  std::unique_lock lock(mutex_);
  for (;;) {
    const bool any = changed_.wait_for(lock, kIdle, [this] { return !queue_.empty(); });
    --idle_;
    if (!any) return;
    const std::function<void()> task = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    task();
    lock.lock();
    --tasks_;
    ++idle_;
  }
}

}  // namespace herring
