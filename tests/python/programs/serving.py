"""The servers of a job as rank 0 knows them, for programs that do something to them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

import herring

HERRING = [sys.executable, "-m", "herring.command.cli"]


def servers() -> list[dict]:
    """Returns the servers as rank 0 knows them."""
    words = [*HERRING, "status", "--job", os.environ["HERRING_JOB"], "--json", "--timeout", "5m"]
    asked = subprocess.run(words, capture_output=True, text=True, check=True, timeout=600)
    return json.loads(asked.stdout)["servers"]


def replace(index: int, number: int) -> None:
    """Sends a server a signal, and returns when another process has taken its place."""
    since = time.monotonic()
    os.kill(servers()[index]["pid"], number)
    await_replaced(index, since)


def await_replaced(index: int, since: float) -> None:
    """Returns when a server has come back, or another process for it, after `since`."""
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        now = servers()[index]
        replaced = now["replaced"]
        if replaced is not None and replaced < time.monotonic() - since:
            assert now["lost"] >= now["replaced"] >= 0, now
            print(f"server {index} replaced", flush=True)
            return
        time.sleep(0.05)
    raise AssertionError(servers())


def run_while_killed(step: Callable[[int], object], kills: Sequence[int]) -> int:
    """Makes steps on all ranks while rank 0 kills the servers in `kills`, one after another.

    Each time rank 0 waits until the job's status shows that another process has taken the place.

    Args:
      step: Is called with the number of the step.
      kills: The indices of the servers; the same on all ranks.

    Returns:
      The number of steps.
    """
    killed = threading.Event()

    def kill() -> None:
        for index in kills:
            replace(index, signal.SIGKILL)
        killed.set()

    killer = threading.Thread(target=kill)
    if herring.rank() == 0:
        killer.start()
    steps = 0
    while not herring.allreduce(np.array([killed.is_set()]), "max", name="go on")[0]:
        step(steps)
        steps += 1
    if herring.rank() == 0:
        killer.join()
    return steps
