// Letting go of the GIL and taking it, also while the interpreter ends: until Python 3.13 a daemon
// thread that asks for it then is ended by pthread_exit(), whose unwinding through C++ ends the
// whole process. Such a thread stands still instead, as it does from Python 3.14 on.
#pragma once

#include <Python.h>
#include <unistd.h>

namespace herring::bindings {

// Calls it; the thread never returns from it if Python ends the thread.
template <typename Call>
auto standing_still_at_exit(Call&& call) noexcept {
  try {
    return call();
  } catch (...) {  // pthread_exit()
    for (;;) pause();
  }
}

class GilReleased {
 public:
  GilReleased() : state_(PyEval_SaveThread()) {}
  ~GilReleased() {
    standing_still_at_exit([this] { PyEval_RestoreThread(state_); });
  }
  GilReleased(const GilReleased&) = delete;
  GilReleased& operator=(const GilReleased&) = delete;

 private:
  PyThreadState* const state_;
};

class GilTaken {
 public:
  GilTaken() : state_(standing_still_at_exit([] { return PyGILState_Ensure(); })) {}
  ~GilTaken() { PyGILState_Release(state_); }
  GilTaken(const GilTaken&) = delete;
  GilTaken& operator=(const GilTaken&) = delete;

 private:
  const PyGILState_STATE state_;
};

}  // namespace herring::bindings
