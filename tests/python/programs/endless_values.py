"""Huge and infinite timeouts, and a helper that makes other ranks late during a wait."""

from __future__ import annotations

import itertools
import sys
import threading

import herring

# Some values are near the limits of signed 64-bit nanoseconds (292 years) and of the 32-bit
# milliseconds in which timeouts travel (49 days).
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
    """Calls `wait` on rank 0 for an operation that the other ranks begin later.

    Returns the waiting thread, and a list of the exceptions that it raises. The other ranks call
    `be_late` before they begin.
    """
    failed = []

    def run():
        try:
            wait()
        except BaseException as error:
            failed.append(error)

    waiting = threading.Thread(target=run)
    waiting.start()
    waiting.join(0.25)  # a timeout that passes at once shows within 0.1 s
    herring.barrier(name=f"late.{next(COUNT)}")
    return waiting, failed


def be_late():
    """Returns after rank 0 has waited for a while."""
    herring.barrier(name=f"late.{next(COUNT)}")
