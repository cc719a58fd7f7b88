// Releases and takes the GIL, even while the interpreter ends. Until Python 3.13, a daemon thread
// that asks for the GIL at that time is ended by pthread_exit(). Its unwinding through C++ would
// end the whole process. Such a thread stands still instead, as it does from Python 3.14 on.
#pragma once

#include <Python.h>
#include <unistd.h>

namespace herring::bindings {

// Runs `call`. If Python ends the thread in it, this function never returns.
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
