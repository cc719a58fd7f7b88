// Sends reports, and entries for a timeline, to the rendezvous on a thread of its own: what it asks
// may have to wait, and the member's thread must not.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "control/member.h"
#include "job/report_source.h"

namespace herring::job {

class Reporter {
 public:
  // Both must outlive this object. If the process has no threads left, there are no reports.
  Reporter(control::Member& member, ReportSource& source);
  ~Reporter();
  Reporter(const Reporter&) = delete;
  Reporter& operator=(const Reporter&) = delete;

 private:
  void run();
  void send();

  static constexpr Nanos kTimelineInterval = 250 * kMillisecond;

  // What the member's thread uses, also after this object is gone. The end of this object needs no
  // memory, so it must not have to tell the member.
  struct Link {
    std::mutex mutex;
    ReportSource* source;             // guarded by mutex; null after the end
    std::atomic<bool> timeline{false};  // entries are wanted

    explicit Link(ReportSource& of) : source(&of) {}
  };

  control::Member& member_;
  ReportSource& source_;
  const uint32_t generation_;  // of forks
  const std::shared_ptr<Link> link_;
  Nanos timeline_due_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ends_ = false;  // guarded by mutex_
  std::unique_ptr<std::thread> thread_;
};

}  // namespace herring::job
