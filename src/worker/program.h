// What the program asks of this worker: which rounds and calls it has begun, and where its threads
// wait for results. Entries of the recorder, warnings on other ranks, and reports of this rank's
// state learn it from here. Any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/fork_guard.h"
#include "base/status.h"
#include "observe/recorder.h"

namespace herring::worker {

struct Activity {
  std::string where;         // such as "waits in allreduce 'x'"; empty: the program computes
  Nanos since = 0;           // since when it has waited there, or computed
  uint64_t rounds = 0, calls = 0;  // that it has begun
  uint64_t in_flight = 0;    // of these, how many are not over
  Nanos waited = 0;          // how long it has waited in all; threads that wait together count once
};

class Program {
 public:
  // `entries`: the size of the recorder; 0: nothing is recorded.
  Program(size_t entries, Nanos now) : recorder_(entries), busy_since_(now) {}

  observe::Recorder& recorder() { return recorder_; }

  // Records that the program has begun a round or made a call at entry.when(kCalled). Returns the
  // ID of the entry. The caller must call end() once.
  uint64_t begin(const observe::Entry& entry) noexcept;
  void end(uint64_t id, Nanos now, Code outcome) noexcept;
  // Notes that the program goes on computing after a call that does not wait.
  void called(Nanos now) noexcept { busy_since_.store(now, std::memory_order_relaxed); }

  // Notes that a thread, or a program without a thread here, waits for the result behind `key`
  // until it calls leave(). `id`: the entry whose result this is, or 0. `where`: returns the text
  // that says where. Returns false if there is no memory for the note; leave() must not be called
  // then.
  template <typename Where>
  bool enter(const void* key, uint64_t id, const Where& where, Nanos now) noexcept {
    try {
      enter_now(key, id, where(), now);
    } catch (const std::exception&) {
      return false;
    }
    return true;
  }
  // Threads wait in slices, so the wait goes on for another moment unless it is `over`.
  void leave(const void* key, Nanos now, bool over) noexcept;
  // Notes that the result behind `key` is there, or will never be, so nobody waits for it any more
  // except threads that have not called leave() yet.
  void over(const void* key) noexcept;

  // Appends the texts of the waits that began before `since`.
  void held_up(Nanos now, Nanos since, std::vector<std::string>& out);
  Activity activity(Nanos now);

 private:
  static constexpr Nanos kBetweenSlices = kSecond;

  struct Wait {
    const void* key = nullptr;
    uint64_t id = 0;
    std::string where;
    Nanos since = 0;       // when the first slice began
    Nanos began = 0;       // when the first of the threads that wait now began
    Nanos until = 0;       // without threads: when the wait counts as given up
    uint32_t threads = 0;
  };

  void enter_now(const void* key, uint64_t id, std::string where, Nanos now);
  void drop_old(Nanos now);
  std::vector<Wait>::iterator find(const void* key);
  // The mutex may be locked in a forked child for ever.
  bool forked() const { return generation_ != fork_generation(); }

  const uint32_t generation_ = fork_generation();
  observe::Recorder recorder_;
  std::atomic<uint64_t> rounds_{0}, calls_{0}, over_{0};
  std::atomic<Nanos> busy_since_;   // when the program last called, or got a result

  std::mutex mutex_;                // guards everything below; taken before the recorder's
  std::vector<Wait> waits_;
  uint32_t threads_ = 0;            // that wait now, for anything
  Nanos began_ = 0, waited_ = 0;    // when the first of them began; sum of the earlier waits
};

// A round or a call that the program has begun. It ends with this object at the latest.
class Asked {
 public:
  Asked() = default;
  Asked(std::shared_ptr<Program> program, const observe::Entry& entry)
      : program_(std::move(program)), id_(program_->begin(entry)) {}
  Asked(Asked&& other) noexcept
      : program_(std::move(other.program_)), id_(std::exchange(other.id_, 0)) {}
  Asked& operator=(Asked&& other) noexcept {
    std::swap(program_, other.program_);
    std::swap(id_, other.id_);
    return *this;
  }
  ~Asked() {
    if (program_ != nullptr) end(monotonic_now(), Code::kShutdown);
  }

  void end(Nanos now, Code outcome) noexcept {
    const std::shared_ptr<Program> program = std::move(program_);
    if (program != nullptr) program->end(id_, now, outcome);
  }
  uint64_t id() const { return id_; }
  bool begun() const { return program_ != nullptr; }  // and not ended

 private:
  std::shared_ptr<Program> program_;  // null: there is none, or it has ended
  uint64_t id_ = 0;
};

}  // namespace herring::worker
