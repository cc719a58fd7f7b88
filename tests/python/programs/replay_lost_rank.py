"""Rank 2 is killed while a recording is replayed."""

import os
import signal

import numpy as np

import herring
from support import meet_outside, stay_until_all_know

herring.init()
path, work = os.environ["RECORDING"], np.ones(8, np.float32)
for _ in range(9):
    herring.allreduce(work, sync="majority", name="a")
statistics = herring.partial_statistics("a")
herring.flush(work, name="a")
statistics.save(path)
meet_outside(herring.rank(), range(3))
try:
    for step in range(9):
        if herring.rank() == 2 and step == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        herring.allreduce(work, sync=herring.Replay(path), name="b")
    herring.flush(work, name="b")
except herring.PeerLostError as error:
    assert "rank 2" in str(error), error
    print("told", flush=True)
stay_until_all_know(herring.rank(), [0, 1])
