// Sends reports, and entries for a timeline, to the rendezvous on a thread of its own: what it asks
// may have to wait, and the member's thread must not.
#pragma once

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
  // What the member's thread uses, also after this object is gone. The end of this object needs no
  // memory, so it must not have to tell the member.
  struct Link {
    explicit Link(ReportSource& of) : source(&of) {}
    void want(bool wanted);

    std::mutex source_mutex;
    ReportSource* source;  // guarded by source_mutex; null after the end
    std::mutex mutex;
    std::condition_variable changed;
    bool ends = false;    // guarded by mutex, as are the following two
    bool wanted = false;  // entries are wanted for a timeline
    bool news = false;    // that has just changed
  };

  void run();
  void send(bool wanted, bool last);

  static constexpr Nanos kTimelineInterval = 250 * kMillisecond;

  control::Member& member_;
  ReportSource& source_;
  const uint32_t generation_;  // of forks
  const std::shared_ptr<Link> link_;
  Nanos timeline_due_ = 0;
  std::unique_ptr<std::thread> thread_;
};

}  // namespace herring::job
