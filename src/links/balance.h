// Keeps the links of one stream in step where servers have different loads. Otherwise the lightly
// loaded servers would finish first and their links would idle at the end. So no link gets more
// than a few frames ahead of another. Pure; every call takes O(log links).
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace herring::links {

// A position counts the transfers of the stream. The transfer that is being pushed counts with the
// share of it that was pushed. The link furthest behind is never held, and every worker processes a
// stream in the same order. Therefore no two workers can wait for each other.
class Balance {
 public:
  // Records that the link has something to push, starting at `position`. The link is no longer
  // held.
  void set(uint32_t link, double position);
  // Records that the link has nothing left to push.
  void remove(uint32_t link);
  // Returns whether the link is more than `allowed` ahead of the one furthest behind. If so, the
  // link waits until release() returns it.
  bool hold(uint32_t link, double allowed);
  // Returns a link that was held and no longer needs to be, if there is one.
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
  std::set<std::pair<double, uint32_t>> held_;  // by the position that releases them
};

}  // namespace herring::links
