// Chooses which signals the threads of the core receive.
#pragma once

#include <pthread.h>
#include <signal.h>

namespace herring {

// While this object exists, new threads start with all signals blocked except those for their own
// errors. Blocked error signals would end the process before Python's faulthandler, or any other
// handler, could report where the error happened.
class WithoutSignals {
 public:
  WithoutSignals() {
    sigset_t all;
    sigfillset(&all);
    for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) sigdelset(&all, own);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~WithoutSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  WithoutSignals(const WithoutSignals&) = delete;
  WithoutSignals& operator=(const WithoutSignals&) = delete;

 private:
  sigset_t before_;
};

}  // namespace herring
