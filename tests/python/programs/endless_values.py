"""Time-outs that callers take for endless, and a wait during which another rank is late."""

from __future__ import annotations

import itertools
import sys
import threading

import herring

# Some are near the edges of a signed 64-bit number of nanoseconds (292 years), and of milliseconds
# in 32 bits, in which time-outs travel (49 days).
VALUES = (
    float("inf"),
    threading.TIMEOUT_MAX,
    sys.float_info.max,
    1e10,
    2.0**63,
    2.0**63 / 1e9,
    3.2e9,
    2**32 / 1e3,
    2**32 / 1e3 - 1e-3,
    2**31 / 1e3,
    4e6,
)
COUNT = itertools.count()


def late(wait):
    """Calls `wait` on rank 0 for an operation that the others begin while it waits.

    Returns the thread that waits, and a list of what it raises. The other ranks call `be_late`.
    """
    failed = []

    def run():
        try:
            wait()
        except BaseException as error:
            failed.append(error)

    waiting = threading.Thread(target=run)
    waiting.start()
    waiting.join(0.25)  # what has passed at once is seen after a slice of 0.1 s
    herring.barrier(name=f"late.{next(COUNT)}")
    return waiting, failed


def be_late():
    """Returns when rank 0 has waited for a while."""
    herring.barrier(name=f"late.{next(COUNT)}")
