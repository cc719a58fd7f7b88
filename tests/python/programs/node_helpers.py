"""Counts the helper threads with which a rank adds."""

from __future__ import annotations

import os
from pathlib import Path


def helpers():
    """Returns the number of helper threads of this process that add."""
    found = 0
    for task in os.listdir("/proc/self/task"):
        try:
            found += Path(f"/proc/self/task/{task}/comm").read_text().strip() == "herring-adder"
        except OSError:
            pass  # the thread has just ended
    return found
