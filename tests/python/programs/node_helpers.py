"""Counts the threads that help a rank to add."""

from __future__ import annotations

import os
from pathlib import Path


def helpers():
    """The number of threads of this process that add for it."""
    found = 0
    for task in os.listdir("/proc/self/task"):
        try:
            found += Path(f"/proc/self/task/{task}/comm").read_text().strip() == "herring-adder"
        except OSError:
            pass  # a thread that has just ended
    return found
