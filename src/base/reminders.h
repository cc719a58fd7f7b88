// Schedules the reminders of a wait that say whom it waits for: the first after a moment, the
// others after pauses that double.
#pragma once

#include <algorithm>

#include "base/clock.h"
#include "base/interrupt.h"

namespace herring {

// The first reminder of waits at a job's start, unless HERRING_WARN_AFTER is shorter. A start takes
// less than this if all processes are running.
inline constexpr Nanos kFirstReminder = 5 * kSecond;
inline Nanos first_reminder(Nanos warn_after) { return std::min(warn_after, kFirstReminder); }
// Who waits has started a while ago, and whom it waits for starts for as long: Python imports its
// libraries. So long, but for no longer than this, reminders are information and not warnings.
// `age`: how old the process was when its wait began.
inline constexpr Nanos kLongStart = 30 * kSecond;
inline Nanos usual_start(Nanos age, Nanos warn_after) {
  return std::clamp(age, first_reminder(warn_after),
                    std::max(first_reminder(warn_after), std::min(warn_after, kLongStart)));
}

class Reminders {
 public:
  // `since` is when the wait began, which may be long ago. Reminders that were due before `now` are
  // skipped.
  Reminders(Nanos since, Nanos first, Nanos now)
      : since_(since), pause_(std::max(first, kMillisecond)), next_(since + pause_) {
    while (next_ <= now) advance();
  }

  Nanos since() const { return since_; }
  Nanos next() const { return next_; }
  // Returns whether a reminder is due now, and if so schedules the next one.
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

// Repeats attempts, each with a deadline of its own, until one succeeds or `deadline` has passed.
// Whenever a reminder is due, calls `say` with the last error and the time waited so far.
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
