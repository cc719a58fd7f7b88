// How everything on a worker ends, because of a failure or because the worker leaves. First nothing
// may access callers' memory any more, which takes a moment. Then the callers are told. Engine
// thread, unless stated otherwise.
#pragma once

#include <mutex>

#include "base/clock.h"
#include "base/status.h"
#include "engine/group.h"

namespace herring::engine {

struct Core;

class Ending {
 public:
  explicit Ending(Core& core) : core_(core) {}

  // Any thread, down to abort(). Returns why nothing can complete any more; ok if something can.
  Status failure() const;
  // Returns failure(), or else why nothing new except partial all-reduces can complete in the
  // group.
  Status incomplete(const Group& group) const;
  // Fails all operations in flight and all later ones.
  void fail(const Status& status);
  // Likewise on every rank, for a reason that only this rank knows.
  void abort(const Status& status);

  // Fails everything, soon: when no server or neighbour reads callers' memory any more, which takes
  // a moment if something is on its way. Then detaches that memory, and tells the callers. Until
  // then all is as if the servers were slow. `leaves`: data queued for the servers is still sent.
  void fail_now(const Status& status, bool leaves = false);
  // Returns whether fail_now() was called. Then nothing else may tell callers anything.
  bool begun() const { return !why_.ok(); }
  bool leaves() const { return leaves_; }
  // The loop lacks memory for what it does.
  void on_exhausted(const Status& why);

  // For the engine's face. Any thread: the program has shut the worker down. Returns false if it
  // already had.
  bool stop();
  bool stopped() const;
  // The engine thread has ended, perhaps before it could do what fail_now() starts.
  void end_after_loop(const Status& left);

 private:
  void end_when_read(Nanos until);
  void end();
  void end_all();

  Core& core_;
  mutable std::mutex mutex_;
  Status failure_;        // guarded by mutex_
  bool stopped_ = false;  // guarded by mutex_
  // Why everything is to fail, whether this worker leaves, and whether callers are being told.
  Status why_;
  bool leaves_ = false, failing_ = false;
};

}  // namespace herring::engine
