"""What Linux tells of a process in /proc/PID/stat."""

from __future__ import annotations

import os
import time
from pathlib import Path

# Fields, as proc(5) counts them.
_STATE = 3
_PARENT = 4
_START = 22


def state(pid: int) -> str:
    """Returns the letter of a process's state, such as ``S`` or ``Z``; "" if there is none."""
    return _field(pid, _STATE)


def has_ended(pid: int) -> bool:
    """Returns whether a process is gone, or waits only for its parent to notice."""
    return state(pid) in ("", "Z", "X")


def parent(pid: int) -> int:
    """Returns the ID of a process's parent; 0 if there is none."""
    return int(_field(pid, _PARENT) or 0)


def identity(pid: int) -> str:
    """Returns a process's ID and start time, such as ``4711-98765``.

    The two together do not repeat while the machine is up. The start time of a process that is gone
    is 0.
    """
    return f"{pid}-{_field(pid, _START) or 0}"


def is_there(process: str) -> bool:
    """Returns whether the process with this `identity` has not ended."""
    pid = int(process.partition("-")[0])
    return not has_ended(pid) and identity(pid) == process


def age() -> float:
    """Returns for how many seconds this process has been running; 0 if Linux does not tell."""
    start = _field(os.getpid(), _START)
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    return max(now - int(start) / os.sysconf("SC_CLK_TCK"), 0.0) if start else 0.0


def _field(pid: int, number: int) -> str:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    # The name in parentheses may itself contain spaces and parentheses.
    fields = text.rpartition(")")[2].split()
    return fields[number - _STATE] if len(fields) > number - _STATE else ""
