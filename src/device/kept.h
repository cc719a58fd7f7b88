// Memory that a device may still use when nothing of Herring does.
#pragma once

#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "base/clock.h"

namespace herring::device {

void keep_for_ever(std::shared_ptr<const void> owner);

template <typename Owner>
void keep_for_ever(Owner owner) {
  keep_for_ever(std::shared_ptr<const void>(std::make_shared<Owner>(std::move(owner))));
}

// Keeps memory to which neighbours' devices may still come after a failure. The caller makes sure
// that one thread at a time uses it.
template <typename Owner>
class KeptForAWhile {
 public:
  void put(Owner owner, Nanos now) { kept_.emplace_back(now, std::move(owner)); }
  // Takes out what was kept for long enough. Freeing it may call this object.
  std::vector<Owner> take(Nanos now) {
    std::vector<Owner> done;
    for (; !kept_.empty() && now - kept_.front().first >= kForAWhile; kept_.pop_front()) {
      done.push_back(std::move(kept_.front().second));
    }
    return done;
  }

 private:
  // By then, all living ranks have heard of a failure (heartbeats, 2 s), and work on devices is
  // done.
  static constexpr Nanos kForAWhile = 10 * kSecond;

  std::deque<std::pair<Nanos, Owner>> kept_;  // the oldest first
};

}  // namespace herring::device
