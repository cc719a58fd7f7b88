"""Rank 2 stops in the middle of an operation that all ranks have begun.

Heartbeats do not notice the stop. Rank 3, which follows rank 2 in the ring, begins last, so the
operation cannot be complete by then. Only rank 3 has a deadline, and it reports the error for all.
The others end with it, because nobody on its node hears that its deadline was missed.
"""

import os
import threading
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


def end_with_rank_3():
    told("known")
    os._exit(0)


if rank == 2:
    time.sleep(0.05)  # Usually, the operation has begun then.

    def while_stopped():
        tell("stopped")
        told("known")

    when_stopped(while_stopped)
elif rank != 3:
    threading.Thread(target=end_with_rank_3, daemon=True).start()
if rank != 2:
    try:
        handle.wait()
    except herring.TimeoutError as error:
        print(f"told: {error}", flush=True)
    except herring.PeerLostError:
        pass  # The rank that has spoken for all has closed its connections.
if rank == 3:
    tell("known")
end_with_rank_3()
