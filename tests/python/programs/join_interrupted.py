"""Tests a join that is interrupted, and a join that fails."""

import os
import signal
import time

import numpy as np

import herring
from support import raises

herring.init()
r = herring.rank()
raises(
    herring.InvalidArgumentError,
    "'herring.join' is reserved",
    herring.allreduce,
    np.ones(3, "f"),
    name="herring.join",
)
group = herring.new_group(range(herring.size()))
if r == 0:

    def interrupt(*_):
        raise KeyboardInterrupt

    signal.signal(signal.SIGUSR1, interrupt)
pids = herring.allgather_object(os.getpid())
if r == 0:
    try:
        herring.join()
    except KeyboardInterrupt:
        herring.barrier(group=group)
    while True:  # the rank has still joined: calls are refused until all have
        try:
            herring.allreduce(np.ones(3, "f"))
            break
        except herring.InvalidArgumentError:
            time.sleep(0.001)
else:
    for _ in range(5):  # these succeed only if rank 0 has joined
        herring.allreduce(np.ones(3, "f"))
    if r == 1:
        os.kill(pids[0], signal.SIGUSR1)
    herring.barrier(group=group)
    herring.join()
    herring.allreduce(np.ones(3, "f"))

# After a failed join, late messages of servers about the group do no harm.
for turn in range(5):
    doomed = herring.new_group(range(herring.size()), name=f"d{turn}")
    if r == 0:
        raises(herring.TimeoutError, "did not call it", herring.join, group=doomed, timeout=0.05)
    else:
        try:
            while True:
                herring.allreduce(np.ones(20_000, "f"), group=doomed)
        except herring.PeerLostError:
            pass
    doomed.destroy()
    herring.barrier()
