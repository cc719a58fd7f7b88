// Keeps the latest entries of a process in a ring of fixed size, so that what happened before a
// failure can be told afterwards. It costs one uncontended lock per mark, at the rate of buffers
// and calls, never of segments. Any thread.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "observe/entry.h"

namespace herring::observe {

class Recorder {
 public:
  static constexpr size_t kEntries = 4096;

  // A recorder for 0 entries is off: nothing is recorded, and begin() returns 0.
  explicit Recorder(size_t entries = kEntries) : entries_(entries), ended_(entries) {}

  bool on() const { return !entries_.empty(); }
  // Records a new entry, whose id it sets. Returns the id.
  uint64_t begin(Entry entry);
  // The calls below do nothing for an id of 0, or of an entry that the ring has dropped or that has
  // ended. Only the first time of a moment counts.
  void mark(uint64_t id, Moment moment, Nanos when);
  void waited(uint64_t id, Nanos duration);
  void end(uint64_t id, Nanos when, Code outcome = Code::kOk);

  // Returns up to `most` entries, the latest ones, in the order of their begin.
  std::vector<Entry> latest(size_t most) const;
  // Returns the entries that ended since the call that returned this cursor, in the order of their
  // end, without those that the ring has dropped. A reader starts with a cursor of 0.
  std::vector<Entry> ended_since(uint64_t& cursor) const;
  // Returns the number of entries that have begun, and of those that have ended.
  uint64_t begun() const;
  uint64_t ended() const;

 private:
  Entry* find(uint64_t id);

  mutable std::mutex mutex_;  // guards everything below
  std::vector<Entry> entries_;     // entry `id` is at id % size
  std::vector<uint64_t> ended_;    // ids in the order of their end
  uint64_t begun_count_ = 0, ended_count_ = 0;
};

// An entry in its recorder, carried along by the work that it describes.
struct Mark {
  Recorder* recorder = nullptr;  // null: nothing is recorded
  uint64_t id = 0;

  void at(Moment moment, Nanos when) const {
    if (recorder != nullptr) recorder->mark(id, moment, when);
  }
  void end(Nanos when, Code outcome = Code::kOk) const {
    if (recorder != nullptr) recorder->end(id, when, outcome);
  }
};

}  // namespace herring::observe
