"""Adds up averages in an elastic job, and checks at the end that no step is missing or double.

Arguments: the folder of the job, the number of steps, the number of workers at the end, and what
happens: "SLOT STEP WHERE", where the worker with this slot kills itself once at this step. A WHERE
that is the name of a signal sends this one instead, in the middle of the step. A number of workers
may follow: at this step, all wait until they are no more than these.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

import herring
import herring.elastic
from support import die_once

folder, steps, final = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
words = [argument.split() for argument in sys.argv[4:]]
events = [(int(slot), int(step), where) for slot, step, where, *_ in words]
waits = [(int(step), int(most)) for _, step, _, *of_workers in words for most in of_workers]
slot = int(os.environ["HERRING_RANK"])
deadline = time.monotonic() + 600
state = herring.elastic.State(step=0, total=np.zeros(5), slots=[])
attempts = 0


def die(where: str) -> None:
    for event in events:
        if event[0] == slot and event[2] == where and event[1] <= state.step:
            number = getattr(signal, where, signal.SIGKILL)
            die_once(folder / f"event {event}", where == "forked", number)


@herring.elastic.run
def train(state: herring.elastic.State) -> str:
    global attempts
    where = f"generation {herring.elastic.generation()}, {herring.size()} workers"
    print(f"{where}, step {state.step}", flush=True)
    while state.step < steps or herring.size() < final:
        assert time.monotonic() < deadline, where
        if any(state.step == step and herring.size() > most for step, most in waits):
            time.sleep(0.005)
            state.commit()
            continue
        attempts += 1
        gradient = np.full(5, float((slot + 1) * (state.step + 1)))
        die("before")
        slots = herring.allgather_object(slot)
        die("between")
        die("forked")
        die("SIGTERM")
        die("SIGUSR1")
        herring.allreduce(gradient)
        die("after")
        state.total = state.total + gradient
        state.slots = [*state.slots, slots]
        state.step += 1
        time.sleep(0.002)
        die("commit")
        state.commit()
    return where


where = train(state)
expected = sum(
    (step + 1) * np.mean([one + 1 for one in slots]) for step, slots in enumerate(state.slots)
)
assert len(state.slots) == state.step >= steps
np.testing.assert_allclose(state.total, expected, rtol=1e-12)
sizes = sorted({len(slots) for slots in state.slots})
print(f"is done: {where}, sizes {sizes}, worker {slot}, {attempts} attempts", flush=True)
