"""A rank dies, before or after it has joined, while the other ranks join.

All timeouts are longer than the job may take, so only news of the death ends what they wait for.
"""

import os
import signal
import threading

import numpy as np

import herring
from support import meet_outside, stay_until_all_know, until, waits

herring.init()
r, victim, joined = herring.rank(), int(os.environ["VICTIM"]), bool(os.environ["JOINED"])
herring.barrier()
meet_outside(r, range(herring.size()))
if r == victim:
    if joined:
        threading.Thread(target=herring.join, daemon=True).start()
        until(waits)
    os.kill(os.getpid(), signal.SIGKILL)
try:
    while r == 0:
        herring.allreduce(np.ones(200_000, np.float32))
    herring.join()
except herring.PeerLostError as error:
    assert f"rank {victim}" in str(error), error
    print(f"survivor {r} has learned of it", flush=True)
stay_until_all_know(r, {*range(herring.size())} - {victim})
