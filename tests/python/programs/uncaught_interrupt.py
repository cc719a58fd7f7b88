"""Interrupts rank 0 during traffic; each rank says that it has ended.

All timeouts are longer than the job may take, so only the interrupt, or news of it, ends a wait.
"""

import atexit
import contextlib
import sys

import numpy as np

import herring
from support import interrupt_when


def end():
    herring.shutdown()
    print(f"rank {rank} has ended", flush=True)


atexit.unregister(herring.shutdown)
atexit.register(end)
herring.init()
rank, step = herring.rank(), 0
array = np.zeros(int(sys.argv[1]), np.float32)
if rank == 0:
    interrupt_when(lambda: step > 5)
with contextlib.suppress(herring.PeerLostError):
    while True:
        herring.allreduce(array)
        step += 1
