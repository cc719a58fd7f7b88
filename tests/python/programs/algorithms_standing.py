"""Rank 2 stops in the middle of an operation that all ranks have begun.

Heartbeats do not notice the stop. Only rank 3, which follows rank 2 in the ring, has a deadline.
The first rank whose deadline passes reports the error for all.
"""

import os
import signal
import time

import numpy as np

import herring

herring.init()
deadline = 2 if herring.rank() == 3 else 100
algorithm = os.environ["ALGORITHM"]
large = np.zeros(20_000_000, np.float32)
herring.allreduce(large[:1000], "sum", algorithm=algorithm)
herring.barrier()
handle = herring.allreduce_async(large, "sum", name="x", algorithm=algorithm, timeout=deadline)
if herring.rank() == 2:
    time.sleep(0.03)
    os.kill(os.getpid(), signal.SIGSTOP)
try:
    handle.wait()
except herring.TimeoutError as error:
    print(f"told: {error}", flush=True)
    os._exit(0)
