#include "job/reporter.h"

#include <pthread.h>

#include <chrono>
#include <system_error>
#include <utility>

#include "base/fork_guard.h"
#include "base/log.h"
#include "base/signals.h"

namespace herring::job {

Reporter::Reporter(control::Member& member, Collect collect)
    : member_(member), collect_(std::move(collect)), generation_(fork_generation()) {
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

void Reporter::hurry() {
  {
    std::lock_guard lock(mutex_);
    hurries_ = true;
  }
  changed_.notify_all();
}

void Reporter::run() {
  pthread_setname_np(pthread_self(), "herring-report");
  std::unique_lock lock(mutex_);
  while (!ends_) {
    changed_.wait_for(lock, std::chrono::nanoseconds(kInterval),
                      [this] { return ends_ || hurries_; });
    if (ends_) return;
    hurries_ = false;
    lock.unlock();
    // A report that fails for lack of memory is left out.
    static_cast<void>(without_exceptions([this] {
      member_.report(collect_());
      return Status();
    }));
    lock.lock();
  }
}

}  // namespace herring::job
