// The threads of Python that stand still in the core until it has something for them. The thread
// herring-stack asks for them (herring/process/stacks.py), to find out whether any thread of the
// program can go on by itself.
#pragma once

#include <Python.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "base/fork_guard.h"
#include "base/status.h"
#include "engine/future.h"

namespace herring::bindings {

class WaitingThread;

// Guarded by the GIL. Where there is none, nobody asks.
class WaitingThreads {
 public:
  // Those of this process; never destroyed.
  static WaitingThreads& here() {
    static auto* const all = new WaitingThreads;
    if (all->generation_ != fork_generation()) {  // a forked child has none of the parent's threads
      *all = {};
    }
    return *all;
  }

  // The calling thread, with this native id, has begun or awaited work.
  void called([[maybe_unused]] unsigned long native) {
#ifndef Py_GIL_DISABLED
    if (callers_.size() >= most_) {  // programs may have a thread for each call
      std::erase_if(callers_, [](const auto& one) {
        return access(concat("/proc/self/task/", one.first).c_str(), F_OK) != 0;
      });
      most_ = std::max(kMost, 2 * callers_.size());
    }
    callers_[native] = PyThread_get_thread_ident();
#endif
  }
  // Returns the threads that have, also some that have ended: their identifiers by native id.
  const std::map<unsigned long, unsigned long>& callers() const { return callers_; }
  // Returns how often a wait for a result has begun or ended.
  uint64_t changes() const { return changes_; }
  // Returns the identifiers of the threads that wait for what has not come. The native ids that
  // Python knows are those of the parent in a forked child.
  std::vector<unsigned long> waiting() const;

 private:
  friend class WaitingThread;
  static constexpr size_t kMost = 256;

  std::set<const WaitingThread*> waits_;
  uint64_t changes_ = 0;
  std::map<unsigned long, unsigned long> callers_;
  size_t most_ = kMost;
  uint32_t generation_ = fork_generation();
};

// Counts the calling thread as waiting.
class WaitingThread {
 public:
  // `future`: what the program waits for; null: the thread waits for an errand of Herring's own.
  explicit WaitingThread(const engine::Future* future) : future_(future) { add(); }
  ~WaitingThread() { remove(); }
  WaitingThread(const WaitingThread&) = delete;
  WaitingThread& operator=(const WaitingThread&) = delete;

  // Calls `handlers`, which runs handlers of signals, as if the thread did not wait meanwhile.
  template <typename Handlers>
  bool outside(const Handlers& handlers) {
    outside_ = true;
    const bool raised = handlers();
    outside_ = false;
    return raised;
  }

 private:
  friend class WaitingThreads;

  void add() {
#ifndef Py_GIL_DISABLED
    WaitingThreads& all = WaitingThreads::here();
    all.waits_.insert(this);
    if (future_ != nullptr) ++all.changes_;
#endif
  }
  void remove() {
#ifndef Py_GIL_DISABLED
    WaitingThreads& all = WaitingThreads::here();
    all.waits_.erase(this);
    if (future_ != nullptr) ++all.changes_;
#endif
  }

  const engine::Future* const future_;
  const unsigned long id_ = PyThread_get_thread_ident();
  bool outside_ = false;
};

inline std::vector<unsigned long> WaitingThreads::waiting() const {
  std::vector<unsigned long> ids;
  for (const WaitingThread* one : waits_) {
    const bool comes = one->future_ != nullptr && one->future_->done();
    if (!comes && !one->outside_) ids.push_back(one->id_);
  }
  return ids;
}

}  // namespace herring::bindings
