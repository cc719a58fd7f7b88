"""Servers are killed while ranks pass messages of all sizes. Each arrives once and in its order.

Rank 0 kills the servers in turn, as many times as the argument says, and each time waits until the
job's status shows that another process has taken the place. The messages of rank 0 go on meanwhile.
"""

import sys

import numpy as np

import herring
from serving import run_while_killed

KILLS = [number % 2 for number in range(int(sys.argv[1]))]  # servers
SIZES = [0, 1, 100, 20_000, 300_000]

herring.init()
rank, size = herring.rank(), herring.size()


def values(number: int, of: int, to: int, place: int) -> np.ndarray:
    """Returns what one rank sends another in a step, one of several messages with one tag."""
    elements = SIZES[(number + place + of) % len(SIZES)]
    return np.arange(elements, dtype=np.int64) + number * 1000 + of * 100 + to * 10 + place


def step(number: int) -> None:
    """Sends every other rank two messages with one tag, and a small one to whoever takes it."""
    others = [other for other in range(size) if other != rank]
    sending = [
        herring.send_async(values(number, rank, to, place), to, tag=1)
        for to in others
        for place in range(2)
    ]
    sending += [herring.send_async(np.array([number, rank]), to, tag=2 + number) for to in others]
    taken = [np.zeros(2, np.int64) for _ in others]
    taking = [herring.receive_async(array, None, tag=2 + number) for array in taken]
    for place in range(2):
        for of in others:
            expected = values(number, of, rank, place)
            got = np.zeros_like(expected)
            herring.receive(got, of, tag=1)
            assert (got == expected).all(), (number, of, place)
    for handle in taking + sending:
        handle.wait()
    for array, handle in zip(taken, taking, strict=True):
        assert array.tolist() == [number, handle.source]
    assert sorted(handle.source for handle in taking) == others


steps = run_while_killed(step, KILLS)
print(f"rank {rank} is done after {steps} steps", flush=True)
