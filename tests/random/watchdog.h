// Knows what every thread of the test waits for. If a thread waits longer than anything may take,
// the watchdog prints that list and ends the process.
#pragma once

#include <mutex>
#include <string>

#include "base/clock.h"

namespace herring::random_test {

// What one thread does. A Doing lives as long as its thread.
class Doing {
 public:
  // `job` says how to repeat the thread's job.
  Doing(std::string job, std::string who);
  ~Doing();
  Doing(const Doing&) = delete;
  Doing& operator=(const Doing&) = delete;

  // Says what the thread does now. `what` must stay valid. `step` is the number of a step of
  // `program`, or negative.
  void now(const char* what, int program = -1, int step = -1, std::string name = {});
  // Says what the thread does now, which may take any time: the threads that it waits for are
  // watched.
  void rests(const char* what, int program = -1);

 private:
  friend class Watchdog;
  const std::string job_, who_;
  std::mutex mutex_;
  const char* what_ = "starts";
  std::string name_;
  int program_ = -1, step_ = -1;
  bool rests_ = false;
  Nanos since_ = monotonic_now();
};

// Prints what every thread waits for and aborts if nothing changes for a thread for `patience`.
void watch(Nanos patience);

// Prints the reason with the command that repeats it, and ends the process.
[[noreturn]] void fail(const std::string& job, const std::string& reason);
// Sets the command that repeats a job.
void set_command(std::string command);

}  // namespace herring::random_test
