"""Tests that measure times: beside other load they would measure that load.

A test with the mark `measures` that fails is repeated if other processes had much of the
processors meanwhile. If they have it each time, the test is skipped and says so. A failure counts
on a machine that has nothing else to do.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

__all__ = ["OTHERS", "Load", "call_in_quiet"]

ATTEMPTS = 3
OTHERS = 0.1  # More than this of all processors is much.


def _busy() -> float:
    """Returns the processor seconds that processes have had, or that its host took from it.

    Those of interrupts do not count: a test that moves data has them, but none of its processes.
    """
    words = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, *_, steal = (int(word) for word in words[:8])
    return (user + nice + system + steal) / os.sysconf("SC_CLK_TCK")


def _own() -> float:
    """Returns the processor seconds of this process and of children that have ended."""
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in both)


class Load:
    """What other processes take of the processors from now on."""

    def __init__(self) -> None:
        self._begun = (time.monotonic(), _busy(), _own())

    def others(self) -> float:
        """Returns the part of all processors that other processes have had."""
        begun, busy, own = self._begun
        there = (time.monotonic() - begun) * (os.cpu_count() or 1)
        return max(0.0, _busy() - busy - (_own() - own)) / max(there, 1e-9)


def call_in_quiet(call: Callable[..., Any], arguments: dict[str, Any]) -> None:
    """Calls a test again if it fails beside other load.

    Args:
      call: the test.
      arguments: what it takes. It gets a new folder as its "tmp_path" each time.

    Raises:
      pytest.skip.Exception: it has failed each time, and always beside other load.
    """
    folder = arguments.get("tmp_path")
    for attempt in range(ATTEMPTS):
        if folder is not None:
            arguments["tmp_path"] = folder / f"attempt-{attempt}"
            arguments["tmp_path"].mkdir()
        load = Load()
        try:
            call(**arguments)
        except Exception as error:
            others = load.others()
            if others < OTHERS:
                raise
            said = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            print(f"attempt {attempt}: other processes had {100 * others:.0f} %: {said}")
        else:
            return
    pytest.skip(f"other processes had {100 * others:.0f} % of this machine: {said}")
