"""When a wait reminds of whom it waits for; src/base/reminders.h is the same for the core."""

from __future__ import annotations

# The first reminder of the waits at a job's start, unless HERRING_WARN_AFTER is shorter.
FIRST_REMINDER = 5.0
# The longest that reminders are information and not warnings, because the others import their
# libraries as this process has done.
LONG_START = 30.0


class Reminders:
    """The reminders of one wait: the first after a moment, the others after pauses that double."""

    def __init__(self, since: float, first: float = FIRST_REMINDER, now: float | None = None):
        """Schedules the first reminder, `first` seconds after `since`.

        Args:
            since: When the wait began, perhaps long ago.
            first: Seconds.
            now: Reminders that were due before are skipped.
        """
        self.since = since  # when the wait began, as `time.monotonic` tells it
        self._pause = max(first, 0.001)
        self.next = since + self._pause  # when the next reminder is due
        self.due(since if now is None else now)

    def due(self, now: float) -> bool:
        """Returns whether a reminder is due now, and if so schedules the next one."""
        due = self.next <= now
        while self.next <= now:
            self._pause *= 2
            self.next += self._pause
        return due
