#include "job/reporter.h"

#include <pthread.h>

#include <chrono>
#include <system_error>
#include <utility>

#include "base/fork_guard.h"
#include "base/log.h"
#include "base/signals.h"

namespace herring::job {

Reporter::Reporter(control::Member& member, Collect collect, Pause pause)
    : member_(member), collect_(std::move(collect)), pause_(std::move(pause)),
      generation_(fork_generation()) {
  const WithoutSignals without_signals;
  try {
    thread_ = std::make_unique<std::thread>([this] { run(); });
  } catch (const std::system_error& error) {
    log(LogLevel::kInfo, "sends no reports: ", error.what());
  }
}

Reporter::~Reporter() {
  if (!thread_) return;
  if (generation_ != fork_generation()) {
    thread_.release();  // in a forked child, which does not have the thread
    return;
  }
  {
    std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_->join();
}

void Reporter::run() {
  pthread_setname_np(pthread_self(), "herring-report");
  std::unique_lock lock(mutex_);
  while (!ends_) {
    changed_.wait_for(lock, std::chrono::nanoseconds(pause_()), [this] { return ends_; });
    if (ends_) return;
    lock.unlock();
    // A report that fails for lack of memory is left out.
    static_cast<void>(without_exceptions([this] {
      if (auto report = collect_()) member_.report(std::move(*report));
      return Status();
    }));
    lock.lock();
  }
}

}  // namespace herring::job
