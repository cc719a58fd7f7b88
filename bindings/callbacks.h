// Callbacks of completed operations, which a Python thread calls.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>

#include "bindings.h"
#include "waiting.h"

namespace herring::bindings {

// A queue of callbacks of a job. The engine, which runs no Python, puts callbacks of completed
// operations here. One Python thread takes and calls them.
class Callbacks {
 public:
  nb::object thread = nb::none();  // the thread that calls take(), once started

  // Adds a callback and takes over its reference. Any thread, without the GIL.
  void put(PyObject* callback) {
    {
      std::lock_guard lock(mutex_);
      queue_.push_back(callback);
    }
    changed_.notify_one();
  }

  // Waits for the next callback. Returns None if there are no more.
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
      const WaitingThread waiting(nullptr);
      GilReleased release;
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return closed_ || !queue_.empty(); });
    }
  }

  // Accepts no more callbacks. Those already added are still taken.
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

// Returns the callbacks of the job whose engine completes the future.
std::shared_ptr<Callbacks> callbacks_of(const engine::Future& future);
// Returns false and calls nothing if the future is already complete. `what`: title for the error in
// a forked child.
bool call_when_done(engine::Future& future, const std::string& what, nb::object callback);
// Called after the end of the job that has this loop, when all its operations are complete.
// Callbacks that they have added are still called.
void end_callbacks(const transport::EventLoop* loop);

}  // namespace herring::bindings
