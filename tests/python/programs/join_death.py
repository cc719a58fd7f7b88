"""A rank dies, before or after it has joined, while the other ranks join."""

import os
import signal
import threading
import time

import numpy as np

import herring

herring.init()
r, victim, joined = herring.rank(), int(os.environ["VICTIM"]), bool(os.environ["JOINED"])
herring.barrier()
start = time.monotonic()
if r == victim:
    if joined:
        threading.Thread(target=herring.join, daemon=True).start()
        time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGKILL)
try:
    while r == 0:
        herring.allreduce(np.ones(200_000, np.float32))
    herring.join()
except herring.PeerLostError as error:
    assert f"rank {victim}" in str(error), error
    print(f"learned in {time.monotonic() - start:.3f} s", flush=True)
