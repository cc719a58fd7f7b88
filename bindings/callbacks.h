// What is called when operations are complete, by a thread of Python's.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>

#include "bindings.h"

namespace herring::bindings {

// What is to be called because operations of a job are complete: put here by the engine, which runs
// no Python, for the one thread of Python's that calls it.
class Callbacks {
 public:
  nb::object thread = nb::none();  // that calls take(), once it was started

  // Any thread, without the GIL; takes the reference.
  void put(PyObject* callback) {
    {
      std::lock_guard lock(mutex_);
      queue_.push_back(callback);
    }
    changed_.notify_one();
  }

  // Waits for the next; None: there is none any more.
  nb::object take() {
    for (;;) {
      {
        std::lock_guard lock(mutex_);
        if (!queue_.empty()) {
          PyObject* const next = queue_.front();
          queue_.pop_front();
          return nb::steal(next);
        }
        if (closed_) return nb::none();
      }
      GilReleased release;
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return closed_ || !queue_.empty(); });
    }
  }

  // Nothing more is put; what was, still is taken.
  void close() {
    {
      std::lock_guard lock(mutex_);
      closed_ = true;
    }
    changed_.notify_one();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<PyObject*> queue_;  // guarded by mutex_
  bool closed_ = false;          // guarded by mutex_
};

// Of the job whose engine completes the future.
std::shared_ptr<Callbacks> callbacks_of(const worker::Future& future);
// False: it is complete already, and nothing will be called. `what`: for the error in a child.
bool call_when_done(worker::Future& future, const std::string& what, nb::object callback);
// After the end of the job that has this loop, with which all operations are complete: what they
// have put is still called.
void end_callbacks(const transport::EventLoop* loop);

}  // namespace herring::bindings
