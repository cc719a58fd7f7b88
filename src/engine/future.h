// A result that a caller waits for. The engine or the thread that watches devices sets it once; any
// thread may read it. A waiting thread drives the engine's loop, unless another one already does.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/continuations.h"
#include "base/status.h"
#include "engine/program.h"
#include "transport/event_loop.h"

namespace herring::engine {

// Where a continuation runs: on the engine's thread, or on a thread of its own, which may wait for
// other results.
enum class Where { kEngine, kThread };

class Future : public Awaited {
 public:
  explicit Future(std::shared_ptr<transport::EventLoop> loop) : loop_(std::move(loop)) {}
  ~Future() override {
    if (noted_.load()) program_->leave_elsewhere(*this, loop_->now());
    if (waited_for_.load()) program_->over(*this);
  }
  Future(const Future&) = delete;
  Future& operator=(const Future&) = delete;

  // Records that the program has begun the round or call whose result this is. The entry ends with
  // this future. Must be called before any other thread knows the future.
  void begin(std::shared_ptr<Program> program, const observe::Entry& entry) {
    program_ = std::move(program);
    asked_ = OpenEntry(program_, entry);
    entry_ = asked_.id();
  }
  // Counts the waits for this future as waits for `other`, of which it is the last step. Must be
  // called before any other thread knows the future.
  void continue_from(const Future& other) {
    program_ = other.program_;
    entry_ = other.entry_;
    where_ = other.where();
  }
  // Returns a mark for the work on the result.
  observe::Mark mark() const {
    return {program_ == nullptr ? nullptr : &program_->recorder(), entry_};
  }
  std::string where() const override { return where_; }

  bool done() const { return done_.load(); }

  void set(Status status) {
    std::vector<std::function<void()>> then;
    bool failed = false;
    {
      std::lock_guard lock(mutex_);
      if (done()) return;
      status_ = std::move(status);
      if (program_ != nullptr) asked_.end(loop_->now(), status_.code());
      failed = program_ != nullptr &&
               (status_.code() == Code::kTimeout || status_.code() == Code::kPeerLost);
      done_.store(true);
      then = std::move(then_);
    }
    changed_.notify_all();
    if (failed) program_->failed(status_);
    if (!loop_->in_loop_thread()) loop_->rouse_driver();
    if (noted_.exchange(false)) program_->leave_elsewhere(*this, loop_->now());
    if (waited_for_.load()) program_->over(*this);
    for (const auto& callback : then) callback();
  }

  // Calls `callback` once the future is done. With kEngine, the call may happen at once and must
  // not block.
  void then(Where where, std::function<void()> callback) {
    if (where == Where::kThread) {
      callback = [callback = std::move(callback)] { Continuations::shared().put(callback); };
    }
    if (!then_unless_done(callback)) callback();
  }

  // Arranges to call `callback` on the engine's thread. Returns false and calls nothing if the
  // future is already done.
  bool then_unless_done(std::function<void()> callback) {
    std::lock_guard lock(mutex_);
    if (done()) return false;
    then_.push_back(std::move(callback));
    return true;
  }

  // Waits for the result. Returns false if it is not done within `wait`, or if a signal arrived.
  bool wait_for(Nanos wait) {
    if (done()) return true;
    const Nanos now = loop_->now();
    if (program_ != nullptr) waited_for_.store(true);
    const bool noted = program_ != nullptr && program_->enter(*this, entry_, now);
    const bool ended = await(now + wait, wait);
    if (!noted) return ended;
    const bool over = done();
    program_->leave(*this, loop_->now(), over);
    if (!over && done()) program_->over(*this);
    return ended;
  }

  // Notes that a program waits for the result, without a thread in wait_for(). Any thread.
  void note_program_waits() {
    std::lock_guard lock(mutex_);
    if (done() || noted_.load() || program_ == nullptr) return;
    noted_.store(program_->enter_elsewhere(*this, entry_, loop_->now()));
  }

  // Returns the loop of the engine that completes this future.
  const transport::EventLoop& loop() const { return *loop_; }
  const std::shared_ptr<transport::EventLoop>& loop_of() const { return loop_; }

  // Valid only once done().
  const Status& status() const { return status_; }

 private:
  bool await(Nanos deadline, Nanos wait) {
    const auto is_done = [this] { return done(); };
    if (loop_->drive(deadline, is_done)) return done();
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::nanoseconds(wait), is_done);
  }

  const std::shared_ptr<transport::EventLoop> loop_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> done_{false};
  std::shared_ptr<Program> program_;   // null: nobody counts the waits
  OpenEntry asked_;
  uint64_t entry_ = 0;                 // the entry of asked_, also after its end
  std::string where_;
  std::atomic<bool> waited_for_{false};  // the program has noted a wait
  std::atomic<bool> noted_{false};       // by note_program_waits(), until the result is there
  Status status_;
  std::vector<std::function<void()>> then_;  // guarded by mutex_
};

}  // namespace herring::engine
