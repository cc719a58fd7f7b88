"""An elastic job goes on with rounds between workers after one has died in them."""

import os
import sys
from pathlib import Path

import numpy as np

import herring
import herring.elastic
from support import die_once

slot = int(os.environ["HERRING_RANK"])
state = herring.elastic.State(step=0, total=np.zeros(5))


@herring.elastic.run
def train(state):
    name, work = f"generation {herring.elastic.generation()}", np.ones(5)
    while state.step < 40:
        work[:] = 1
        herring.allreduce(work, "sum", sync=sys.argv[2], algorithm="doubling", name=name)
        state.total = state.total + work
        state.step += 1
        if slot == 1 and state.step == 20:
            die_once(Path(sys.argv[1], "died"))
        if state.step % 8 == 0:
            state.commit()
    for rest in herring.flush(np.zeros(5), name=name):
        state.total = state.total + rest


train(state)
totals = herring.allgather_object(state.total.tolist())
assert all(one == totals[0] for one in totals) and totals[0][0] > 40, totals
print(f"is done in generation {herring.elastic.generation()}", flush=True)
