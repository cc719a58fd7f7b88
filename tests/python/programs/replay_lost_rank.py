"""Rank 2 is killed while a recording is replayed."""

import os
import signal
import time

import numpy as np

import herring

herring.init()
path, work = os.environ["RECORDING"], np.ones(8, np.float32)
for _ in range(9):
    herring.allreduce(work, sync="majority", name="a")
statistics = herring.partial_statistics("a")
herring.flush(work, name="a")
statistics.save(path)
try:
    for step in range(9):
        if herring.rank() == 2 and step == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        herring.allreduce(work, sync=herring.Replay(path), name="b")
    herring.flush(work, name="b")
except herring.PeerLostError as error:
    assert "rank 2" in str(error), error
    print("told", flush=True)
    open(f"{path}.told-{herring.rank()}", "w").close()
# Each rank waits for the other, which might otherwise notice this rank's exit before rank 2's.
while not all(os.path.exists(f"{path}.told-{rank}") for rank in (0, 1)):
    time.sleep(0.01)
