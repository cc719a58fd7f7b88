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
algorithm = os.environ["ALGORITHM"]
large = np.zeros(5_000_000, np.float32)
herring.allreduce(large, name="warm", algorithm=algorithm)
try:
    herring.barrier()  # the victim may leave it, and die, before the others have left it
    if rank == victim:
        handle = herring.allreduce_async(large, name="last", algorithm=algorithm)
        os.kill(os.getpid(), signal.SIGKILL)
    herring.allreduce(large, name="last", algorithm=algorithm)
    while True:
        herring.allreduce(large, "sum", algorithm=algorithm)
except herring.PeerLostError as error:
    assert f"rank {victim}" in str(error), error
    print(f"survivor {rank} has learned of it", flush=True)
stay_until_all_know(rank, {*range(herring.size())} - {victim})
