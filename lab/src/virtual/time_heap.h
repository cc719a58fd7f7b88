// A heap of times, each with a tag, which also orders entries with equal times.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/clock.h"

namespace herring::transport::virtual_time {

inline constexpr Nanos kNever = std::numeric_limits<Nanos>::max();

class TimeHeap {
 public:
  struct Entry {
    Nanos time;
    uint64_t tag;
  };

  bool empty() const { return entries_.empty(); }
  size_t size() const { return entries_.size(); }
  const Entry& top() const { return entries_[0]; }

  void push(Entry entry) {
    entries_.push_back(entry);
    size_t hole = entries_.size() - 1;
    while (hole > 0) {
      size_t parent = (hole - 1) / kWays;
      if (!before(entry, entries_[parent])) break;
      entries_[hole] = entries_[parent];
      hole = parent;
    }
    entries_[hole] = entry;
  }

  void pop() {
    Entry last = entries_.back();
    entries_.pop_back();
    if (!entries_.empty()) sink(last);
  }

  // Does the same as pop() and push(), in one step.
  void replace_top(Entry entry) { sink(entry); }

 private:
  static constexpr size_t kWays = 4;  // children of an entry share a cache line

  static bool before(const Entry& a, const Entry& b) {
    return a.time < b.time || (a.time == b.time && a.tag < b.tag);
  }

  // Replaces the first entry by `entry`.
  void sink(Entry entry) {
    size_t hole = 0;
    const size_t count = entries_.size();
    for (size_t child; (child = hole * kWays + 1) < count;) {
      size_t least = child;
      size_t end = child + kWays < count ? child + kWays : count;
      for (size_t other = child + 1; other < end; ++other) {
        least = before(entries_[other], entries_[least]) ? other : least;
      }
      if (!before(entries_[least], entry)) break;
      entries_[hole] = entries_[least];
      hole = least;
    }
    entries_[hole] = entry;
  }

  std::vector<Entry> entries_;
};

}  // namespace herring::transport::virtual_time
