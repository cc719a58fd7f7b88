#include "tests/random/watchdog.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <thread>

namespace herring::random_test {

// Watches all threads of the test.
class Watchdog {
 public:
  static Watchdog& instance() {
    static auto* one = new Watchdog;  // never destroyed: its thread ends with the process
    return *one;
  }

  void add(Doing* doing) {
    std::lock_guard lock(mutex_);
    all_.insert(doing);
  }
  void remove(Doing* doing) {
    std::lock_guard lock(mutex_);
    all_.erase(doing);
  }

  void watch(Nanos patience) {
    for (;;) {
      std::this_thread::sleep_for(std::chrono::seconds(1));
      std::lock_guard lock(mutex_);
      const Doing* stuck = nullptr;
      for (Doing* doing : all_) {
        std::lock_guard one(doing->mutex_);
        if (!doing->rests_ && monotonic_now() - doing->since_ > patience) stuck = doing;
      }
      if (stuck != nullptr) report(*stuck);
    }
  }

  std::string command;

  // Prints what every thread of the job does.
  void tell(const std::string& job) {
    for (Doing* doing : all_) {
      if (doing->job_ != job) continue;
      std::lock_guard one(doing->mutex_);
      std::fprintf(stderr, "  %-14s %s", doing->who_.c_str(), doing->what_);
      if (doing->program_ >= 0) std::fprintf(stderr, " (program %d", doing->program_);
      if (doing->step_ >= 0) {
        std::fprintf(stderr, ", step %d '%s'", doing->step_, doing->name_.c_str());
      }
      std::fprintf(stderr, "%s for %.1f s\n", doing->program_ >= 0 ? ")" : "",
                   to_seconds(monotonic_now() - doing->since_));
    }
    std::fprintf(stderr, "repeat: %s --seed=%s\n", command.c_str(), job.c_str());
  }

  void failed(const std::string& job) {
    std::lock_guard lock(mutex_);
    tell(job);
  }

 private:
  [[noreturn]] void report(const Doing& stuck) {
    std::fprintf(stderr, "\nHANG: %s of job %s\n", stuck.who_.c_str(), stuck.job_.c_str());
    tell(stuck.job_);
    std::abort();
  }

  std::mutex mutex_;
  std::set<Doing*> all_;
};

Doing::Doing(std::string job, std::string who) : job_(std::move(job)), who_(std::move(who)) {
  Watchdog::instance().add(this);
}

Doing::~Doing() { Watchdog::instance().remove(this); }

void Doing::now(const char* what, int program, int step, std::string name) {
  std::lock_guard lock(mutex_);
  what_ = what;
  program_ = program;
  step_ = step;
  name_ = std::move(name);
  rests_ = false;
  since_ = monotonic_now();
}

void Doing::rests(const char* what, int program) {
  now(what, program);
  std::lock_guard lock(mutex_);
  rests_ = true;
}

void watch(Nanos patience) {
  std::thread([patience] { Watchdog::instance().watch(patience); }).detach();
}

void set_command(std::string command) { Watchdog::instance().command = std::move(command); }

void fail(const std::string& job, const std::string& reason) {
  static std::mutex once;
  once.lock();  // never unlocked: only the first failure is reported
  std::fprintf(stderr, "\nFAILED: %s\n", reason.c_str());
  Watchdog::instance().failed(job);
  std::fflush(stderr);
  ::_exit(1);
}

}  // namespace herring::random_test
