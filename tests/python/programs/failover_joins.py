"""Servers are killed while ranks with uneven data reduce and join. All results are right.

Rank 0 kills the servers in turn, as many times as the argument says, and each time waits until the
job's status shows that another process has taken the place.
"""

import sys

import numpy as np

import herring
from serving import run_while_killed

KILLS = [number % 2 for number in range(int(sys.argv[1]))]  # servers
SIZES = [10, 100_000]

herring.init()
rank, size = herring.rank(), herring.size()


def calls_of(number: int, of: int) -> int:
    """Returns how many times a rank reduces in a step: of each step another one most often."""
    return 1 + 2 * ((of + number) % size)


def values(number: int, of: int, call: int, elements: int) -> np.ndarray:
    """Returns what a rank gives in a call."""
    return (np.arange(elements, dtype=np.float32) * (of + 1) + number + call) % 1009


def step(number: int) -> None:
    """Reduces small and large arrays, and joins while the last ones are in flight."""
    handles = []
    arrays = []
    for call in range(calls_of(number, rank)):
        for handle in handles:
            handle.wait()
        arrays = [values(number, rank, call, elements) for elements in SIZES]
        handles = [
            herring.allreduce_async(array, "sum", name=f"array {place}")
            for place, array in enumerate(arrays)
        ]
        if call % 2 == 0:
            continue
        check(number, call, arrays, handles)
        handles = []
    last = herring.join()
    check(number, calls_of(number, rank) - 1, arrays, handles)
    assert last == max(range(size), key=lambda of: calls_of(number, of)), (number, last)


def check(number: int, call: int, arrays: list, handles: list) -> None:
    """Compares results with the sums of the ranks that have made the call."""
    for array, handle in zip(arrays, handles, strict=True):
        handle.wait()
        givers = [of for of in range(size) if calls_of(number, of) > call]
        expected = sum(values(number, of, call, len(array)) for of in givers)
        assert (array == expected).all(), (number, call, len(array))


steps = run_while_killed(step, KILLS)
print(f"rank {rank} is done after {steps} steps", flush=True)
