#include "job/reporter.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <system_error>
#include <utility>

#include "base/fork_guard.h"
#include "base/log.h"
#include "base/signals.h"

namespace herring::job {

Reporter::Reporter(control::Member& member, ReportSource& source)
    : member_(member), source_(source), generation_(fork_generation()),
      link_(std::make_shared<Link>(source)) {
  member_.observe({
      .rank_texts =
          [link = link_](const observe::RankTexts& texts) {
            std::lock_guard lock(link->mutex);
            if (link->source != nullptr) link->source->told(texts);
          },
      .record =
          [link = link_] {
            std::lock_guard lock(link->mutex);
            return link->source == nullptr ? observe::ProcessRecord() : link->source->record();
          },
      .timeline = [link = link_](bool on) { link->timeline.store(on); },
  });
  const WithoutSignals without_signals;
  try {
    thread_ = std::make_unique<std::thread>([this] { run(); });
  } catch (const std::system_error& error) {
    log(LogLevel::kInfo, "sends no reports: ", error.what());
  }
}

Reporter::~Reporter() {
  if (generation_ != fork_generation()) {
    static_cast<void>(thread_.release());  // in a forked child, which does not have the thread
    return;
  }
  {
    std::lock_guard lock(link_->mutex);
    link_->source = nullptr;
  }
  if (!thread_) return;
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
    Nanos pause = source_.pause();
    if (link_->timeline.load()) {
      pause = std::min(pause, std::max<Nanos>(timeline_due_ - monotonic_now(), 0));
    } else {
      pause = std::min(pause, kTimelineInterval);
    }
    changed_.wait_for(lock, std::chrono::nanoseconds(pause), [this] { return ends_; });
    lock.unlock();
    // What fails for lack of memory is left out.
    static_cast<void>(without_exceptions([this] {
      send();
      return Status();
    }));
    lock.lock();
  }
}

void Reporter::send() {
  if (auto report = source_.report()) member_.report(std::move(*report));
  if (!link_->timeline.load()) return;
  const Nanos now = monotonic_now();
  const bool last = [this] {
    std::lock_guard lock(mutex_);
    return ends_;
  }();
  if (now < timeline_due_ && !last) return;
  timeline_due_ = now + kTimelineInterval;
  observe::ProcessRecord entries;
  entries.entries = source_.ended();
  if (!entries.entries.empty()) member_.timeline(std::move(entries));
}

}  // namespace herring::job
