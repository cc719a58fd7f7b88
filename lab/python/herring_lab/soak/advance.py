"""How far a soak is, on standard error."""

from __future__ import annotations

import sys
import time

from herring.base.units import show_time
from herring_lab.progress import StatusLine

_LOOK = 1.0  # seconds from one text on a terminal to the next
_PARTS = 10  # without a terminal, a line for each part of the whole


class Advance:
    """Shows how much of one job is done: on a terminal in one line, else in ten lines."""

    def __init__(self, name: str) -> None:
        """Begins with nothing done.

        Args:
            name: What the job is.
        """
        self._name = name
        self._line = StatusLine()
        self._began = time.monotonic()
        self._due = 0.0
        self._part = 0

    def show(self, share: float, what: str) -> None:
        """Shows that a share of the job is done, 0 to 1, and what has happened in it."""
        now = time.monotonic()
        part = int(_PARTS * share)
        if now < self._due if self._line.terminal else part <= self._part:
            return
        self._due, self._part = now + _LOOK, part
        text = f"{self._name}: {100 * share:.0f} %, {what}"
        if share > 0:
            text += f", about {show_time((now - self._began) * (1 / share - 1))} left"
        if self._line.terminal:
            self._line.show(text)
        else:
            print(text, file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Removes the line from the terminal."""
        self._line.clear()
