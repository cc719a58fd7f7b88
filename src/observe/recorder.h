// Keeps the latest entries of a process in a ring of fixed size, so that what happened before a
// failure can be told afterwards. It costs one uncontended lock per mark, at the rate of buffers
// and calls, never of segments. Any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "observe/entry.h"
#include "observe/operations.h"

namespace herring::observe {

class Recorder {
 public:
  static constexpr size_t kEntries = 4096;

  // `entries`: a power of two, or 0. A recorder for 0 entries is off: nothing is recorded, and
  // begin() returns 0.
  explicit Recorder(size_t entries = kEntries) : entries_(entries), ended_(entries) {}

  bool on() const { return !entries_.empty() && !paused_.load(std::memory_order_relaxed); }
  // A recorder that is paused records no new entries. A program that measures what recording costs
  // pauses it in turns.
  void pause(bool yes) { paused_.store(yes, std::memory_order_relaxed); }
  // Records a copy of this entry with a new id. Returns the id.
  uint64_t begin(const Entry& entry);
  // The calls below do nothing for an id of 0, or of an entry that the ring has dropped or that has
  // ended. Only the first time of a moment counts.
  void mark(uint64_t id, Moment moment, Nanos when);
  void waited(uint64_t id, Nanos duration);
  // Sets the stream and the round of a call, which are known only once all ranks have made it.
  void place(uint64_t id, uint32_t stream, uint32_t round);
  // If a round fails, its buffers end with it.
  void end(uint64_t id, Nanos when, Code outcome = Code::kOk);

  // Returns up to `most` entries, the latest ones, in the order of their begin.
  std::vector<Entry> latest(size_t most) const;
  // Calls `call` for the entries that ended since the call that returned this cursor, in the order
  // of their end, without those that the ring has dropped, which `dropped` counts. A reader starts
  // with a cursor of 0. `call` may use the recorder: entries are copied few at a time, so that who
  // marks never waits for the reader.
  void each_ended(uint64_t& cursor, const std::function<void(const Entry&)>& call,
                  uint64_t* dropped = nullptr) const;
  std::vector<Entry> ended_since(uint64_t& cursor, uint64_t* dropped = nullptr) const;
  // Returns the number of entries that have begun, and of those that have ended.
  uint64_t begun() const;
  uint64_t ended() const;
  // Returns what has ended well since the start, also of entries that the ring has dropped.
  std::vector<OperationCount> operations() const;

 private:
  static constexpr size_t kBatch = 32;  // entries that are copied at a time

  size_t place_of(uint64_t count) const { return count & (entries_.size() - 1); }
  Entry* find(uint64_t id);
  void finish(Entry& entry, Nanos when, Code outcome);

  std::atomic<bool> paused_{false};
  mutable std::mutex mutex_;  // guards everything below
  std::vector<Entry> entries_;     // entry `id` is at id % size
  std::vector<uint64_t> ended_;    // ids in the order of their end
  uint64_t begun_count_ = 0, ended_count_ = 0;
  OperationCounts operations_;
};

// Parts of the work of one entry that have not passed a moment yet.
struct Parts {
  uint32_t to_reduce = 0, to_push = 0;
};

// An entry in its recorder, carried along by the work that it describes.
struct Mark {
  Recorder* recorder = nullptr;  // null: nothing is recorded
  uint64_t id = 0;
  // If not null, the work goes on in several parts, each of which carries this mark: the last one
  // that is reduced or pushed counts. Used on one thread only.
  Parts* parts = nullptr;

  explicit operator bool() const { return recorder != nullptr && id != 0; }
  void at(Moment moment, Nanos when) const {
    if (recorder == nullptr) return;
    if (parts != nullptr) {
      uint32_t* const left = moment == Moment::kReduced  ? &parts->to_reduce
                             : moment == Moment::kPushed ? &parts->to_push
                                                         : nullptr;
      if (left != nullptr && *left > 0 && --*left > 0) return;
    }
    recorder->mark(id, moment, when);
  }
  void end(Nanos when, Code outcome = Code::kOk) const {
    if (recorder != nullptr) recorder->end(id, when, outcome);
  }
};

}  // namespace herring::observe
