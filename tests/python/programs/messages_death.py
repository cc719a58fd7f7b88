"""The last rank dies while it sends; messages between the others still arrive."""

import os
import signal
import time

import numpy as np

import herring
from support import meet_outside, raises

herring.init()
r, n = herring.rank(), herring.size()
group = herring.new_group(range(n))
rest = herring.new_group(range(n - 1))
count = 5_000_000
herring.barrier()
meet_outside(r, range(n))
if r == n - 1:
    held = herring.send_async(np.ones(count, np.float32), 0)
    time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGKILL)
if r == 0:
    raises(herring.PeerLostError, f"rank {n - 1} (", herring.receive, np.ones(3), n - 1, 9)
    raises(herring.PeerLostError, "", herring.send, np.ones(3), n - 1)
    herring.send(np.full(count, 4.0, np.float32), 1, group=rest)
elif r == 1:
    array = np.empty(count, np.float32)
    assert herring.receive(array, group=rest) == 0 and (array == 4).all()
herring.barrier(group=rest)
print("went on", r, flush=True)
