// Where servers have different loads, the light ones would be done before the heavy ones, and links
// idle at the end: so no link gets more than a few frames ahead of another. Of one stream. Pure;
// every call takes O(log links).
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace herring::worker {

// A position counts transfers of the stream, the one that is being pushed with the share of it that
// was. The link that is behind all others is never held, and every worker goes through a stream in
// the same order: no two can wait for each other.
class Balance {
 public:
  // The link has something to push, from there on. It is no longer held.
  void set(uint32_t link, double position);
  // It has nothing to push any more.
  void remove(uint32_t link);
  // Whether the link is more than `allowed` ahead of the one that is furthest behind. If it is, it
  // waits until release() names it.
  bool hold(uint32_t link, double allowed);
  // A link that waited and need not any more, if there is one.
  std::optional<uint32_t> release();
  bool empty() const { return positions_.empty(); }

 private:
  struct State {
    double position = 0, until = 0;
    bool pushes = false, held = false;
  };
  void forget(uint32_t link);

  std::vector<State> links_;
  std::set<std::pair<double, uint32_t>> positions_;
  std::set<std::pair<double, uint32_t>> held_;  // by where the last one must be to release them
};

}  // namespace herring::worker
