"""A rank kills itself during traffic; the others print when they learn of its death."""

import os
import signal
import time

import numpy as np

import herring

herring.init()
rank, victim = herring.rank(), int(os.environ["VICTIM"])
large = np.zeros(2_000_000, np.float32)
herring.allreduce(large, name="warm")
if rank == victim:
    herring.barrier()  # its server dies too, so all need their results by now
    handle = herring.allreduce_async(large, name="last")
    os.kill(os.getpid(), signal.SIGKILL)
start = time.monotonic()
try:
    herring.barrier()
    while True:
        herring.allreduce(large, "sum")
except herring.PeerLostError as error:
    took = time.monotonic() - start
    assert f"rank {victim}" in str(error), error
    print(f"survivor {rank} learned in {took:.2f} s", flush=True)
try:
    herring.barrier()
except herring.PeerLostError:
    print(f"still failed {rank}", flush=True)
