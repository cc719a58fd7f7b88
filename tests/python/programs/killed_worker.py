"""A rank kills itself during traffic; the others say that they learn of its death.

All timeouts are longer than the job may take, so only news of the death ends what they wait for.
"""

import os
import signal

import numpy as np

import herring
from support import stay_until_all_know

herring.init()
rank, victim = herring.rank(), int(os.environ["VICTIM"])
large = np.zeros(2_000_000, np.float32)
herring.allreduce(large, name="warm")
if rank == victim:
    herring.barrier()  # its server dies too, so all need their results by now
    handle = herring.allreduce_async(large, name="last")
    os.kill(os.getpid(), signal.SIGKILL)
try:
    herring.barrier()
    while True:
        herring.allreduce(large, "sum")
except herring.PeerLostError as error:
    assert f"rank {victim}" in str(error), error
    print(f"survivor {rank} has learned of it", flush=True)
try:
    herring.barrier()
except herring.PeerLostError:
    print(f"still failed {rank}", flush=True)
stay_until_all_know(rank, {*range(herring.size())} - {victim})
