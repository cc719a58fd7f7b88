"""Forks the test process itself."""

from __future__ import annotations

import os
import signal
import time
import traceback
from collections.abc import Callable

__all__ = ["fork", "reap"]


def fork(run: Callable[[], object]) -> int:
    """Runs a function in a forked child, which always exits after it; returns the child's ID."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        run()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)  # otherwise the child would continue as a second pytest


def reap(child: int, seconds: float = 600.0) -> int:
    """Waits for a child, killing it after `seconds`, and returns its exit status."""
    deadline = time.monotonic() + seconds
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        time.sleep(0.01)
