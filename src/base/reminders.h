// When a wait says whom it waits for: first after a moment, then after pauses that double.
#pragma once

#include <algorithm>

#include "base/clock.h"
#include "base/interrupt.h"

namespace herring {

// Of the waits of a job's start, unless HERRING_WARN_AFTER is shorter. A start takes less where all
// processes run.
inline constexpr Nanos kFirstReminder = 5 * kSecond;
inline Nanos first_reminder(Nanos warn_after) { return std::min(warn_after, kFirstReminder); }

class Reminders {
 public:
  // `since`: when the wait began, which may be long ago; what would have been said before `now` is
  // not said any more.
  Reminders(Nanos since, Nanos first, Nanos now)
      : since_(since), pause_(std::max(first, kMillisecond)), next_(since + pause_) {
    while (next_ <= now) advance();
  }

  Nanos since() const { return since_; }
  Nanos next() const { return next_; }
  // Whether something is to be said now; the next time is later.
  bool due(Nanos now) {
    if (now < next_) return false;
    while (next_ <= now) advance();
    return true;
  }

 private:
  void advance() {
    pause_ *= 2;
    next_ += pause_;
  }

  Nanos since_, pause_, next_;
};

// Makes attempts that take a deadline of their own until one succeeds or `deadline` has passed, and
// calls `say` with the last error and how long the wait has taken whenever a reminder is due.
template <typename Attempt, typename Say>
auto attempt_with_reminders(Nanos deadline, Reminders& reminders, const Attempt& attempt,
                            const Say& say) {
  for (;;) {
    const Nanos until = std::min(deadline, reminders.next());
    auto result = attempt(until);
    const Nanos now = monotonic_now();
    if (result.ok() || until == deadline || now < until || interrupted()) return result;
    if (reminders.due(now)) say(result.status(), now - reminders.since());
  }
}

}  // namespace herring
