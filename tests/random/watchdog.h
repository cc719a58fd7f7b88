// Knows what every thread of the test waits for, and ends the process with that list when one of
// them has waited for longer than anything may take.
#pragma once

#include <mutex>
#include <string>

#include "base/clock.h"

namespace herring::random_test {

// What one thread does; lives as long as it does.
class Doing {
 public:
  // `job`: how to repeat what it belongs to.
  Doing(std::string job, std::string who);
  ~Doing();
  Doing(const Doing&) = delete;
  Doing& operator=(const Doing&) = delete;

  // `what` must stay valid; `step` is the number of a step of `program`, or less than 0.
  void now(const char* what, int program = -1, int step = -1, std::string name = {});
  // Likewise, and it may take as long as it likes: others are watched that it waits for.
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

// Prints what everybody waits for and aborts when nothing changes for a thread for `patience`.
void watch(Nanos patience);

// Prints the reason with the command that repeats it, and ends the process.
[[noreturn]] void fail(const std::string& job, const std::string& reason);
// The command that repeats a job.
void set_command(std::string command);

}  // namespace herring::random_test
