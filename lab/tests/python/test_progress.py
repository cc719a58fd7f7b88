"""Progress is one changing line on a terminal, plain lines elsewhere, and nothing if quiet."""

from __future__ import annotations

import contextlib
import io
import os
import pty

import pytest

from herring_lab import progress
from herring_lab.progress import Progress, StatusLine


class Terminal:
    """A pseudo-terminal whose `read` returns everything that was written to `stream`."""

    def __init__(self) -> None:
        self._own, theirs = pty.openpty()
        self.stream = os.fdopen(theirs, "w")

    def read(self) -> str:
        """Closes the stream and returns everything that was written to it."""
        self.stream.close()
        found = b""
        with contextlib.suppress(OSError):  # Linux reports the end as an error.
            while data := os.read(self._own, 1 << 16):
                found += data
        return found.decode().replace("\r\n", "\n")

    def close(self) -> None:
        self.stream.close()
        os.close(self._own)


@pytest.fixture
def terminal():
    made = Terminal()
    yield made
    made.close()


def test_a_file_gets_a_line_per_step_and_the_time_left(monkeypatch) -> None:
    now = iter([100.0, 160.0, 220.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(now))
    stream = io.StringIO()
    report = Progress(stream=stream)
    report.begin("over-delay")
    for done in range(3):
        report(done, 5, f"step {done}")
    report.clear()
    assert stream.getvalue() == (
        "over-delay [1/5] step 0\n"
        "over-delay [2/5] step 1, about 4 min left\n"
        "over-delay [3/5] step 2, about 3 min left\n"
    )


def test_a_terminal_has_one_line_that_goes_before_others_speak(terminal, monkeypatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    report = Progress(stream=terminal.stream)
    report(0, 2, "one")
    report(1, 2, "x" * 500)
    report.say("skipped: nccl")
    report.clear()
    shown = terminal.read()
    first, second, said = shown.split("\r\x1b[2K")[1:]
    assert first == "[1/2] one"
    assert second.startswith("[2/2] xxx")
    assert len(second) == 79
    assert said == "skipped: nccl\n"


def test_quiet_is_quiet_and_a_dumb_terminal_gets_lines(terminal, monkeypatch) -> None:
    stream = io.StringIO()
    report = Progress(quiet=True, stream=stream)
    report(0, 1, "one")
    report.clear()
    assert stream.getvalue() == ""
    monkeypatch.setenv("TERM", "dumb")
    Progress(stream=terminal.stream)(0, 1, "one")
    line = StatusLine(terminal.stream)
    line.show("never")
    assert not line.terminal
    assert terminal.read() == "[1/1] one\n"
