// Sends reports of a process to the rendezvous, about once a second, on a thread of its own: what it
// asks may have to wait, and the member's thread must not.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "base/clock.h"
#include "control/member.h"
#include "observe/report.h"

namespace herring::job {

class Reporter {
 public:
  using Collect = std::function<observe::Report()>;

  static constexpr Nanos kInterval = kSecond;

  // `member` and what `collect` uses must outlive this object. If the process has no threads left,
  // there are no reports.
  Reporter(control::Member& member, Collect collect);
  ~Reporter();
  Reporter(const Reporter&) = delete;
  Reporter& operator=(const Reporter&) = delete;

  // Sends a report as soon as possible. Any thread.
  void hurry();

 private:
  void run();

  control::Member& member_;
  const Collect collect_;
  const uint32_t generation_;  // of forks
  std::mutex mutex_;
  std::condition_variable changed_;
  bool hurries_ = false, ends_ = false;  // guarded by mutex_
  std::unique_ptr<std::thread> thread_;
};

}  // namespace herring::job
