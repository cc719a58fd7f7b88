"""A rank kills itself during traffic; the others print when they learn of its death."""

import os
import signal
import time

import numpy as np

import herring

herring.init()
rank, victim = herring.rank(), int(os.environ["VICTIM"])
algorithm = os.environ["ALGORITHM"]
large = np.zeros(5_000_000, np.float32)
herring.allreduce(large, name="warm", algorithm=algorithm)
start = time.monotonic()
try:
    herring.barrier()  # the victim may leave it, and die, before the others have left it
    if rank == victim:
        handle = herring.allreduce_async(large, name="last", algorithm=algorithm)
        os.kill(os.getpid(), signal.SIGKILL)
    start = time.monotonic()
    herring.allreduce(large, name="last", algorithm=algorithm)
    while True:
        herring.allreduce(large, "sum", algorithm=algorithm)
except herring.PeerLostError as error:
    took = time.monotonic() - start
    assert f"rank {victim}" in str(error), error
    print(f"survivor {rank} learned in {took:.2f} s", flush=True)
