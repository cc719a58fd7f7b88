"""Trains until a server has been replaced that the first worker kills or stops by a signal."""

from __future__ import annotations

import os
import signal
import sys
import time

import numpy as np

import herring
import herring.elastic
from support import server_process

deadline = time.monotonic() + 600
state = herring.elastic.State(step=0, killed=False)


def dedicated() -> int:
    return sum(one["dedicated"] for one in herring.stats()["servers"])


@herring.elastic.run
def train(state: herring.elastic.State) -> None:
    generation = herring.elastic.generation()
    while state.step < 5 or not state.killed or dedicated() < 2 or generation < 2:
        assert time.monotonic() < deadline
        ones = np.ones(1000)
        if state.step == 3 and not state.killed:
            state.killed = True
            if herring.rank() == 0:
                os.kill(server_process(), signal.Signals[sys.argv[1]])
        herring.allreduce(ones)
        assert (ones == 1).all()
        state.step += 1
        time.sleep(0.005)
        state.commit()


train(state)
print(f"is done with {dedicated()} servers", flush=True)
