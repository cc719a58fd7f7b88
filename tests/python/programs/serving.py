"""The servers of a job as rank 0 knows them, for programs that do something to them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

HERRING = [sys.executable, "-m", "herring.launch.cli"]


def servers() -> list[dict]:
    """Returns the servers as rank 0 knows them."""
    words = [*HERRING, "status", "--job", os.environ["HERRING_JOB"], "--json"]
    asked = subprocess.run(words, capture_output=True, text=True, check=True, timeout=30)
    return json.loads(asked.stdout)["servers"]


def replace(index: int, number: int) -> None:
    """Sends a server a signal, and returns when another process has taken its place."""
    since = time.monotonic()
    os.kill(servers()[index]["pid"], number)
    await_replaced(index, since)


def await_replaced(index: int, since: float) -> None:
    """Returns when a server has come back, or another process for it, after `since`."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        now = servers()[index]
        replaced = now["replaced"]
        if replaced is not None and replaced < time.monotonic() - since:
            assert now["lost"] >= now["replaced"] >= 0, now
            print(f"server {index} replaced", flush=True)
            return
        time.sleep(0.05)
    raise AssertionError(servers())
