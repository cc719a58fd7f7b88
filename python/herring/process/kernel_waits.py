"""Threads that only another thread of this process can wake, as the kernel tells.

A thread may wait without Python: one of XLA's for a result, or the main thread for a program of
XLA. The kernel says in which system call a thread waits. If all threads wait on futexes that no
other process sees, and without a limit, none of them can ever go on by itself.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Collection
from pathlib import Path

_FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine())
_PRIVATE, _CLOCK = 128, 256  # flags of the operation
_WAITS = (0, 9)  # FUTEX_WAIT and FUTEX_WAIT_BITSET


def still_threads(
    others: Collection[int], runs_python: Collection[int]
) -> tuple[tuple[int, int], ...] | None:
    """Returns the threads that can only be woken, each with how often it has stopped so far.

    As long as the number is the same, the thread has not gone on.

    Args:
      others: The native identifiers of threads that are left out.
      runs_python: Those of threads that run Python. Of Herring's own threads, only these count.

    Returns:
      None if one of the threads can go on by itself, or if the kernel does not tell.
    """
    found = []
    try:
        for task in Path("/proc/self/task").iterdir():
            thread = int(task.name)
            if thread in others or (thread not in runs_python and _is_own(task)):
                continue
            if not _can_only_be_woken((task / "syscall").read_text()):
                return None
            switches = re.findall(r"ctxt_switches:\s*(\d+)", (task / "status").read_text())
            found.append((thread, sum(map(int, switches))))
    except OSError:  # a thread has ended, or the kernel has no such file
        return None
    return tuple(sorted(found))


def _is_own(task: Path) -> bool:
    """Returns whether a thread is one of the core's. Reports tell whether these stand still."""
    return (task / "comm").read_text().startswith("herring-")


def _can_only_be_woken(call: str) -> bool:
    """Returns whether the kernel's line about a thread says that it waits for another thread."""
    number, *arguments = call.split()
    if not number.isdigit() or int(number) != _FUTEX or len(arguments) < 4:
        return False
    _, operation, _, limit = (int(one, 16) for one in arguments[:4])
    return bool(operation & _PRIVATE) and operation & ~(_PRIVATE | _CLOCK) in _WAITS and limit == 0
