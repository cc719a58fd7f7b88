// What the program asks of this worker: which rounds and calls it has begun, and where its threads
// wait for results. Entries of the recorder, warnings on other ranks, and reports of this rank's
// state learn it from here. Any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/fork_guard.h"
#include "base/status.h"
#include "observe/group_book.h"
#include "observe/recorder.h"

namespace herring::engine {

struct Activity {
  std::string where;         // such as "waits in allreduce 'x'"; empty: the program computes
  Nanos since = 0;           // since when it has waited there, or computed
  uint64_t rounds = 0, calls = 0;  // that it has begun
  uint64_t in_flight = 0;    // of these, how many are not over
  Nanos waited = 0;          // how long it has waited in all; threads that wait together count once
};

// A result that the program may wait for.
class Awaited {
 public:
  virtual ~Awaited() = default;
  // Returns text that says where a thread is that waits for it. Any thread; must not call Program.
  virtual std::string where() const = 0;
};

class Program {
 public:
  // `entries`: the size of the recorder; 0: nothing is recorded.
  Program(size_t entries, Nanos now)
      : recorder_(entries), groups_(entries > 0), busy_since_(now) {}

  observe::Recorder& recorder() { return recorder_; }
  observe::GroupBook& groups() { return groups_; }
  // Calls `call`, on any thread, when a round or call has failed for a reason that other ranks know
  // more about. Must be set before the first round or call.
  void on_failure(std::function<void(const Status&)> call) { on_failure_ = std::move(call); }
  void failed(const Status& why) const {
    if (on_failure_) on_failure_(why);
  }

  // Records that the program has begun a round or made a call at entry.when(kCalled). Returns the
  // ID of the entry. The caller must call end() once.
  uint64_t begin(const observe::Entry& entry) noexcept;
  void end(uint64_t id, Nanos now, Code outcome) noexcept;
  // Notes that the program goes on computing after a call that does not wait.
  void called(Nanos now) noexcept { busy_since_.store(now, std::memory_order_relaxed); }

  // Notes that a thread waits for a result, until it calls leave(). `id`: the entry whose result
  // this is, or 0. Returns false if there is no memory for the note; leave() must not be called
  // then. Threads wait in slices, so the wait goes on for another moment unless it is `over`.
  bool enter(const Awaited& awaited, uint64_t id, Nanos now) noexcept;
  void leave(const Awaited& awaited, Nanos now, bool over) noexcept;
  // Notes in the same way that the program waits without a thread here, until leave_elsewhere().
  bool enter_elsewhere(const Awaited& awaited, uint64_t id, Nanos now) noexcept;
  void leave_elsewhere(const Awaited& awaited, Nanos now) noexcept;
  // Notes that a result is there, or will never be, so that nobody waits for it any more except
  // threads that have not called leave() yet.
  void over(const Awaited& awaited) noexcept;

  // Appends the texts of the waits that began before `since`.
  void held_up(Nanos now, Nanos since, std::vector<std::string>& out);
  Activity activity(Nanos now);

 private:
  static constexpr Nanos kBetweenSlices = kSecond;

  struct Wait {
    const Awaited* awaited = nullptr;  // to be read while threads wait
    std::string where;     // its text, for when no thread waits
    uint64_t id = 0;
    Nanos since = 0;       // when the first slice began
    Nanos began = 0;       // when the first of those who wait now began
    Nanos until = 0;       // if nobody waits now: when the wait counts as given up
    uint32_t threads = 0;
    bool elsewhere = false;

    bool waits() const { return threads > 0 || elsewhere; }
    std::string text() const { return threads > 0 ? awaited->where() : where; }
  };

  Wait& enter(const Awaited& awaited, uint64_t id, Nanos now, std::string where);
  void leave(std::vector<Wait>::iterator wait, Nanos now);
  void drop_old(Nanos now);
  std::vector<Wait>::iterator find(const Awaited& awaited);
  // The mutex may be locked in a forked child for ever.
  bool forked() const { return generation_ != fork_generation(); }

  const uint32_t generation_ = fork_generation();
  std::function<void(const Status&)> on_failure_;
  observe::Recorder recorder_;
  observe::GroupBook groups_;
  std::atomic<uint64_t> rounds_{0}, calls_{0}, over_{0};
  std::atomic<Nanos> busy_since_;   // when the program last called, or got a result

  std::mutex mutex_;                // guards everything below; taken before the recorder's
  std::vector<Wait> waits_;
  uint32_t waiting_ = 0;            // results for which somebody waits now
  Nanos began_ = 0, waited_ = 0;    // when the first of them began; sum of the earlier waits
};

// A round or a call that the program has begun. It ends with this object at the latest.
class OpenEntry {
 public:
  OpenEntry() = default;
  OpenEntry(std::shared_ptr<Program> program, const observe::Entry& entry)
      : program_(std::move(program)), id_(program_->begin(entry)), group_(entry.group) {
    program_->groups().begin(group_, entry.kind, entry.when(observe::Moment::kCalled));
  }
  OpenEntry(OpenEntry&& other) noexcept
      : program_(std::move(other.program_)), id_(std::exchange(other.id_, 0)),
        group_(other.group_) {}
  OpenEntry& operator=(OpenEntry&& other) noexcept {
    std::swap(program_, other.program_);
    std::swap(id_, other.id_);
    std::swap(group_, other.group_);
    return *this;
  }
  ~OpenEntry() {
    if (program_ != nullptr) end(monotonic_now(), Code::kShutdown);
  }

  void end(Nanos now, Code outcome) noexcept {
    const std::shared_ptr<Program> program = std::move(program_);
    if (program == nullptr) return;
    program->groups().end(group_, now);
    program->end(id_, now, outcome);
  }
  uint64_t id() const { return id_; }
  bool begun() const { return program_ != nullptr; }  // and not ended

 private:
  std::shared_ptr<Program> program_;  // null: there is none, or it has ended
  uint64_t id_ = 0;
  uint32_t group_ = 0;
};

}  // namespace herring::engine
