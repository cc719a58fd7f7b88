"""Trains in an elastic job; in the first generation the rank VICTIM loses its GPU in a step.

MOMENT says at which of the driver's calls. The argument is a file that a worker which is started
again finds.
"""

import os
import sys
from pathlib import Path

import numpy as np

import herring
import herring.elastic
from gpus import Driver, GpuArray

STEPS, LOST = 9, 5
driver = Driver()
driver.jitter(0)


@herring.elastic.run
def train(state: herring.elastic.State) -> None:
    rank, size = herring.rank(), herring.size()
    device = rank % driver.count()
    array = GpuArray(np.zeros(300_000, np.float32), device)
    plan = herring.PlannedReduction(
        [(100_000, "float32")] * 3, name="p", device=device, buffer_bytes=1 << 19
    )
    plan.place([array])
    while state.step < STEPS:
        once = Path(sys.argv[1])
        if rank == int(os.environ["VICTIM"]) and state.step == LOST and not once.exists():
            once.touch()
            driver.lose(int(os.environ["MOMENT"]), device)
        plan.begin()
        array.fill(rank + state.step)
        plan.ready_all([0, 1, 2])
        plan.wait()
        assert (array.get() == state.step + (size - 1) / 2).all()
        state.step += 1
        state.commit()
    plan.close()
    print(f"trained in generation {herring.elastic.generation()}", flush=True)


train(herring.elastic.State(step=0))
