"""Progress of long work: on standard error, never mixed with what a command prints.

On a terminal one line is updated in place; in a file or a log each step is a line.
"""

from __future__ import annotations

import os
import sys
import time
from typing import TextIO

from herring.base.units import show_time


class StatusLine:
    """The line at the bottom of a terminal, overwritten in place; silent without a terminal.

    Code that prints something else must call `clear` first.

    Args:
      stream: where the line goes; by default ``sys.stderr`` at the time of the call.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self.terminal = self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._shown = False

    def show(self, text: str) -> None:
        """Replaces the line by a text, cut to the terminal's width."""
        if self.terminal and self._in_front():
            self._write(f"\r\x1b[2K{text[: self._width()]}")
            self._shown = True

    def clear(self) -> None:
        """Leaves an empty line if a text was shown."""
        if self._shown:
            self._write("\r\x1b[2K")
            self._shown = False

    def _in_front(self) -> bool:
        """Returns False in a background job, where the terminal belongs to the shell."""
        try:
            return os.tcgetpgrp(self._stream.fileno()) == os.getpgrp()
        except (OSError, ValueError):  # the stream is not the controlling terminal
            return True

    def _width(self) -> int:
        try:
            columns = os.get_terminal_size(self._stream.fileno()).columns
        except (OSError, ValueError):
            columns = 0
        return (columns or 80) - 1

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


class Progress:
    """Says which step of how many is under way, and how long the rest may take.

    The estimate assumes that the remaining steps take as long as the average step so far.

    Args:
      quiet: say nothing.
      stream: where the lines go; by default ``sys.stderr`` at the time of the call.
    """

    def __init__(self, quiet: bool = False, stream: TextIO | None = None) -> None:
        self._quiet = quiet
        self._stream = sys.stderr if stream is None else stream
        self._line = StatusLine(self._stream)
        self._name = ""
        self._start = 0.0

    def begin(self, name: str) -> None:
        """Names the work that the next steps belong to."""
        self._name = f"{name} "

    def __call__(self, done: int, total: int, what: str) -> None:
        """Reports that a step begins."""
        if self._quiet:
            return
        now = time.monotonic()
        if done == 0:
            self._start = now
        left = ""
        if done > 0:
            left = f", about {show_time((now - self._start) / done * (total - done))} left"
        text = f"{self._name}[{done + 1}/{total}] {what}{left}"
        if self._line.terminal:
            self._line.show(text)
        else:
            print(text, file=self._stream, flush=True)

    def say(self, text: str) -> None:
        """Prints a line that stays."""
        self.clear()
        print(text, file=self._stream, flush=True)

    def clear(self) -> None:
        """Removes the line: the work is over, or something else will be printed."""
        self._line.clear()
