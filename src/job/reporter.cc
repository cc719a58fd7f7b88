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
            std::lock_guard lock(link->source_mutex);
            if (link->source != nullptr) link->source->told(texts);
          },
      .record =
          [link = link_]() -> std::optional<observe::ProcessRecord> {
            std::lock_guard lock(link->source_mutex);
            if (link->source == nullptr) return std::nullopt;
            return link->source->record();
          },
      .timeline = [link = link_](bool wanted) { link->want(wanted); },
      .dropped =
          [link = link_] {
            std::lock_guard lock(link->source_mutex);
            if (link->source != nullptr) link->source->dropped();
          },
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
  member_.settle();  // a failure that was told just now has its record
  {
    std::lock_guard lock(link_->source_mutex);
    link_->source = nullptr;
  }
  if (!thread_) return;
  {
    std::lock_guard lock(link_->mutex);
    link_->ends = true;
  }
  link_->changed.notify_all();
  thread_->join();
}

void Reporter::Link::want(bool yes) {
  std::lock_guard lock(mutex);
  wanted = yes;
  news = true;
  changed.notify_all();
}

void Reporter::run() {
  pthread_setname_np(pthread_self(), "herring-report");
  Link& link = *link_;
  std::unique_lock lock(link.mutex);
  while (!link.ends) {
    Nanos pause = source_.pause();
    if (link.wanted) pause = std::min(pause, std::max<Nanos>(timeline_due_ - monotonic_now(), 0));
    link.changed.wait_for(lock, std::chrono::nanoseconds(pause),
                          [&link] { return link.ends || link.news; });
    // A member whose entries are wanted no more sends the last ones, as does one that leaves.
    const bool last = link.ends ? link.wanted : std::exchange(link.news, false) && !link.wanted;
    const bool wanted = link.wanted;
    lock.unlock();
    // What fails for lack of memory is left out.
    static_cast<void>(without_exceptions([&] {
      send(wanted, last);
      return Status();
    }));
    lock.lock();
  }
}

void Reporter::send(bool wanted, bool last) {
  if (auto report = source_.report()) member_.report(std::move(*report));
  const Nanos now = monotonic_now();
  if (!last && (!wanted || now < timeline_due_)) return;
  timeline_due_ = now + kTimelineInterval;
  observe::ProcessRecord entries = source_.timeline(last);
  if (last || !entries.entries.empty()) member_.timeline(std::move(entries), last);
}

}  // namespace herring::job
