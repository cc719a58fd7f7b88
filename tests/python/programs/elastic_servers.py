"""Trains until a killed server has been replaced; the first worker kills it."""

from __future__ import annotations

import os
import signal
import time

import numpy as np

import herring
import herring.elastic

deadline = time.monotonic() + 60
state = herring.elastic.State(step=0, killed=False)


def dedicated() -> int:
    return sum(one["dedicated"] for one in herring.stats()["servers"])


def a_server() -> int:
    """Returns a server's process: a child of the launcher that runs `herring server`."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
            with open(f"/proc/{name}/environ", "rb") as file:
                same = f"HERRING_JOB={os.environ['HERRING_JOB']}".encode() in file.read()
        except OSError:
            continue
        if same and b"server" in words:
            return int(name)
    raise AssertionError("no server found")


@herring.elastic.run
def train(state: herring.elastic.State) -> None:
    generation = herring.elastic.generation()
    while state.step < 5 or not state.killed or dedicated() < 2 or generation < 2:
        assert time.monotonic() < deadline
        ones = np.ones(1000)
        if state.step == 3 and not state.killed:
            state.killed = True
            if herring.rank() == 0:
                os.kill(a_server(), signal.SIGKILL)
        herring.allreduce(ones)
        assert (ones == 1).all()
        state.step += 1
        time.sleep(0.005)
        state.commit()


train(state)
print(f"is done with {dedicated()} servers", flush=True)
