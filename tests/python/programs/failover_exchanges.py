"""Servers are killed while ranks exchange and reduce large arrays in all ways, alone and in lists.

All results are right.

Rank 0 kills the servers in turn, as many times as the argument says, and each time waits until the
job's status shows that another process has taken the place.
"""

import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import herring
from serving import run_while_killed

KILLS = [number % 2 for number in range(int(sys.argv[1]))]  # servers
ROWS = 40_000  # for each rank

herring.init()
rank, size = herring.rank(), herring.size()


def values(number: int, of: int, rows: int = ROWS) -> np.ndarray:
    """Returns what a rank has in a step."""
    return (np.arange(rows, dtype=np.int64) * (of + 1) + number) % 1009


def step(number: int) -> None:
    """Exchanges arrays in all ways, several at once."""
    mine = values(number, rank)
    root = number % size
    sent = values(number, rank) if rank == root else np.zeros(ROWS, np.int64)
    parts = np.concatenate([values(number + to, rank) for to in range(size)])
    total = mine.astype(np.float32)
    several = [values(number, rank, rows).astype(np.float64) for rows in (5, ROWS // 2)]
    calls = [
        lambda: herring.broadcast(sent, root, name="broadcast"),
        lambda: herring.allgather(mine, name="gather"),
        lambda: herring.reduce_scatter(parts, op="sum", name="scatter"),
        lambda: herring.alltoall(parts, name="all to all"),
        lambda: herring.allreduce(total, "sum", name="reduce"),
        lambda: herring.grouped_allreduce(several, "max", name="reduce several"),
    ]
    _, gathered, scattered, exchanged, _, _ = threads.map(lambda call: call(), calls)
    assert (sent == values(number, root)).all()
    assert (gathered == np.concatenate([values(number, of) for of in range(size)])).all()
    assert (total == sum(values(number, of) for of in range(size))).all()
    for one in several:
        assert (one == np.max([values(number, of, len(one)) for of in range(size)], axis=0)).all()
    assert (scattered == sum(values(number + rank, of) for of in range(size))).all()
    assert (exchanged == np.concatenate([values(number + rank, of) for of in range(size)])).all()


threads = ThreadPoolExecutor(6)
steps = run_while_killed(step, KILLS)
print(f"rank {rank} is done after {steps} steps", flush=True)
