"""Rank 0 kills the last server, and every rank learns of its death."""

import os
import signal

import numpy as np

import herring
from support import meet_outside, server_processes, stay_until_all_know

herring.init()
array = np.zeros(1_000_000, np.float32)
herring.allreduce(array, name="warm")
ranks = range(herring.size())
meet_outside(herring.rank(), ranks)
if herring.rank() == 0:
    os.kill(server_processes()[-1], signal.SIGKILL)
try:
    while True:
        herring.allreduce(array)
except herring.PeerLostError as error:
    assert "server " in str(error), error
    print("told", flush=True)
stay_until_all_know(herring.rank(), ranks)
