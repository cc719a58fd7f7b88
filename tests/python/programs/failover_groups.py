"""Servers are killed while ranks form groups, use them once, and destroy them.

Rank 0 kills the servers in turn, as many times as the argument says, and each time waits until the
job's status shows that another process has taken the place.
"""

import sys

import numpy as np

import herring
from serving import run_while_killed

KILLS = [number % 2 for number in range(int(sys.argv[1]))]  # servers

herring.init()
rank, size = herring.rank(), herring.size()


def step(number: int) -> None:
    """Forms random groups, often of the same name and ranks as before."""
    random = np.random.default_rng(number)
    groups = []
    for place in range(6):
        members = np.flatnonzero(random.random(size) < 0.7).tolist()
        if rank not in members:
            continue
        group = herring.new_group(members, name=f"team {place % 2}")
        array = np.full(10 if place % 3 else 50_000, rank + number, np.float32)
        herring.allreduce(array, "sum", name="sum", group=group)
        assert (array == sum(members) + number * len(members)).all(), (number, members, array[0])
        groups.append(group)
    herring.barrier()  # who destroys a group gives nothing to others that lack a result
    for group in groups:
        group.destroy()


steps = run_while_killed(step, KILLS)
print(f"rank {rank} is done after {steps} steps", flush=True)
