// Sends reports of a process to the rendezvous, on a thread of its own: what it asks may have to
// wait, and the member's thread must not.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "base/clock.h"
#include "control/member.h"
#include "observe/report.h"

namespace herring::job {

class Reporter {
 public:
  // Returns a report, or nothing if none is due.
  using Collect = std::function<std::optional<observe::Report>()>;
  // Returns how long to wait before the next call of `collect`.
  using Pause = std::function<Nanos()>;

  // `member` and what the functions use must outlive this object. If the process has no threads
  // left, there are no reports.
  Reporter(control::Member& member, Collect collect, Pause pause);
  ~Reporter();
  Reporter(const Reporter&) = delete;
  Reporter& operator=(const Reporter&) = delete;

 private:
  void run();

  control::Member& member_;
  const Collect collect_;
  const Pause pause_;
  const uint32_t generation_;  // of forks
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ends_ = false;  // guarded by mutex_
  std::unique_ptr<std::thread> thread_;
};

}  // namespace herring::job
