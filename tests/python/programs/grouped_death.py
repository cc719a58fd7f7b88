"""The last rank dies while a list is in flight; a failed call leaves its arrays unchanged."""

import os
import signal

import numpy as np

import herring
from support import meet_outside, stay_until_all_know

herring.init()
rank, size = herring.rank(), herring.size()

mine = [np.full(1_500_000, rank, np.float32), np.full(200_000, rank, np.int32)]
herring.grouped_allreduce(mine, "sum", name="good")
for n in range(1000):
    before = [a[0] for a in mine]
    if n == 3:
        meet_outside(rank, range(size))
    if rank == size - 1 and n == 3:
        handle = herring.grouped_allreduce_async(mine, "sum", name="bad")
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        herring.grouped_allreduce(mine, "sum", name="bad" if n == 3 else str(n))
    except herring.PeerLostError:
        assert all((a == b).all() for a, b in zip(mine, before))
        print("survived", flush=True)
        stay_until_all_know(rank, range(size - 1))
        os._exit(0)
