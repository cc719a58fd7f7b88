"""Interrupts rank 0 while it waits for rank 1, and continues the job.

Rank 1 calls only when rank 0 says so. The arguments are the operation, the number of elements, and
the expected first element of the result.
"""

import os
import signal
import sys
import threading
import time

import numpy as np

import herring

herring.init()
array = np.ones(int(sys.argv[2]), np.float32)
herring.barrier()
said = os.environ["SAID"]

call = {
    "barrier": herring.barrier,
    "allreduce": lambda: herring.allreduce(array, "sum"),
    "allgather": lambda: herring.allgather(array),
}[sys.argv[1]]

if herring.rank() == 0:
    # The signal arrives after the main thread has waited for a while.
    threading.Timer(0.5, signal.raise_signal, [signal.SIGINT]).start()
    start = time.monotonic()
    try:
        call()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    assert time.monotonic() - start < 20
    open(said, "w").close()
else:
    while not os.path.exists(said):
        time.sleep(0.01)
    call()
herring.allreduce(np.zeros(3), name="after")  # the job continues
assert array.flat[0] == int(sys.argv[3]), array.flat[0]
