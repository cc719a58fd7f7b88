"""Passes huge and infinite timeouts to waits and to every operation."""

import functools

import numpy as np

import herring
from endless_values import VALUES, be_late, late

herring.init()
rank, size = herring.rank(), herring.size()

for value in VALUES:
    for turn, wait in enumerate(
        (
            lambda handle, value=value: handle.wait(value),
            lambda handle, value=value: handle.exception(value),
            lambda handle: handle.wait(),
        )
    ):
        array, own = np.ones(40_000, np.float32), value if turn == 2 else None
        start = functools.partial(herring.allreduce_async, array, "sum", timeout=own)
        if rank == 0:
            handle = start()
            waiting, failed = late(functools.partial(wait, handle))
            waiting.join(600)
            assert not waiting.is_alive() and not failed, (value, turn, failed)
        else:
            be_late()
            start().wait()
        assert array[0] == size
    ones = np.ones(3, np.float32)
    herring.allreduce(ones.copy(), timeout=value)
    herring.broadcast(ones.copy(), timeout=value)
    herring.allgather(ones, timeout=value)
    herring.reduce_scatter(np.ones(4), timeout=value)
    herring.alltoall(np.ones(4), timeout=value)
    herring.reduce(ones, timeout=value)
    herring.gather(ones, timeout=value)
    herring.scatter(np.ones(4), timeout=value)
    herring.barrier(timeout=value)
    herring.broadcast_object("x", timeout=value)
    herring.allgather_object("x", timeout=value)
    herring.grouped_allreduce([ones.copy(), ones.copy()], timeout=value)
    herring.grouped_allreduce_async([ones.copy(), ones.copy()]).wait(value)
    herring.new_group([0, 1], timeout=value)
    if rank == 0:
        herring.send(ones, 1, timeout=value)
    else:
        herring.receive(ones.copy(), 0, timeout=value)
    assert herring.join(timeout=value) in (0, 1)
