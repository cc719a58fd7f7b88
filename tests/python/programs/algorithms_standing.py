"""Rank 2 stops in the middle of an operation that all ranks have begun.

Heartbeats do not notice the stop. Rank 3, which follows rank 2 in the ring, begins last, so the
operation cannot be complete by then. Only rank 3 has a deadline, and it reports the error for all.
"""

import os
import time

import numpy as np

import herring
from support import tell, told, when_stopped

herring.init()
rank = herring.rank()
deadline = 4 if rank == 3 else 600
algorithm = os.environ["ALGORITHM"]
large = np.zeros(20_000_000, np.float32)
herring.allreduce(large[:1000], "sum", algorithm=algorithm)
herring.barrier()
if rank == 3:
    told("stopped")
handle = herring.allreduce_async(large, "sum", name="x", algorithm=algorithm, timeout=deadline)
others = ("knows 0", "knows 1", "knows 3")
if rank == 2:
    time.sleep(0.05)  # Usually, the operation has begun then.

    def while_stopped():
        tell("stopped")
        told(*others)

    when_stopped(while_stopped)
    told(*others)
    os._exit(0)
try:
    handle.wait()
except herring.TimeoutError as error:
    print(f"told: {error}", flush=True)
except herring.PeerLostError:
    pass  # The rank that has spoken for all has closed its connections.
tell(f"knows {rank}")
told(*others)
os._exit(0)
