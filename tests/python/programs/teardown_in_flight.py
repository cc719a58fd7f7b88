"""Rank 1 leaves or gives up while operations of every kind are in flight.

Rank 1 frees and reuses the memory of the operations at once. It waits DELAY seconds before it
leaves.
"""

import gc
import os
import time

import numpy as np

import herring

rank_of_victim, delay = 1, float(os.environ["DELAY"])
herring.init()
rank, size = herring.rank(), herring.size()
plan = herring.PlannedReduction([(1_000_000, "float32")] * 2, buffer_bytes=1 << 20)
shared, private = herring.empty(1_000_000), np.ones(1_000_000, np.float32)
rows = np.ones((size, 200_000), np.float32)
handles = []


def begin():
    handles.append(herring.allreduce_async(shared, name="shared"))
    handles.append(herring.allreduce_async(private, name="private"))
    if rank != size - 1 or rank == rank_of_victim:
        plan.begin()
        plan.ready(0)
        plan.ready(1)


try:
    herring.barrier()
    begin()
    if rank == rank_of_victim:
        time.sleep(delay)
        herring.abort("enough") if os.environ["HOW"] == "abort" else herring.shutdown()
        plan.close()
        for array in (shared, private, rows):
            array[:] = 7
        handles.clear()
        del plan, shared, private, rows
        gc.collect()
        print("left", flush=True)
    else:
        for handle in handles:
            handle.wait()
        plan.wait()
        while True:
            herring.allreduce(private)
except (herring.PeerLostError, herring.ShutdownError, herring.InvalidArgumentError):
    print("left", flush=True)
