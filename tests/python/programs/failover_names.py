"""A server is killed while ranks wait for its answers about names, and a last rank has not called.

All ranks but the last call all-reduces of so many names that each server has some of them. The last
rank calls as soon as rank 0 knows that the server is gone.
"""

import os
import signal
import time
from pathlib import Path

import numpy as np

import herring
from serving import servers

NAMES = 16


def server() -> dict:
    """Returns the last server as rank 0 knows it."""
    return servers()[-1]


herring.init()
rank, size = herring.rank(), herring.size()
gone = Path(os.environ["FAILOVER_FOLDER"]) / "gone"
arrays = [np.full(1000, number + rank, np.float32) for number in range(NAMES)]


def call() -> list[herring.Handle]:
    """Starts the all-reduces."""
    return [
        herring.allreduce_async(array, "sum", name=f"call {number}")
        for number, array in enumerate(arrays)
    ]


herring.allreduce(np.zeros(1), name="all are here")
group = herring.new_group(list(range(size - 1)), name="waiting")
handles = []
if rank < size - 1:
    handles = call()
    herring.barrier(group=group)
if rank == 0:
    old = server()
    os.kill(old["pid"], signal.SIGKILL)
    while (now := server())["pid"] == old["pid"] and now["state"] == "serving":
        time.sleep(0.02)
    gone.touch()
if rank == size - 1:
    while not gone.exists():
        time.sleep(0.01)
    handles = call()
for number, (array, handle) in enumerate(zip(arrays, handles, strict=True)):
    handle.wait()
    assert (array == size * number + sum(range(size))).all(), (number, array[:4])
print(f"rank {rank} is done", flush=True)
