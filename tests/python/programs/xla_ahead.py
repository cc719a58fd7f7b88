"""Queues executions of a call whose kernels do not end; the host waits once two are under way."""

import threading
import time

import numpy as np

import herring
from gate import Gate
from xla_job import Program, array, rank, size

STEPS = 6
mine = array(np.zeros(1_000_000, np.float32))
program = Program(mine)
gates = [Gate() for step in range(STEPS)]
opened = []


def open_late(gate: Gate) -> None:
    time.sleep(0.1)  # A host that does not wait has gone on by then.
    opened.append(gate)
    gate.open()


for step, gate in enumerate(gates):
    if step > 1:
        threading.Thread(target=open_late, args=[gates[step - 2]]).start()
    gate.hold(mine)
    mine.fill(rank + step)
    assert program.start("k", [mine], [mine]) is None
    assert program.finish("k", [mine]) is None
    assert len(opened) == max(0, step - 1), (step, len(opened))
for gate in gates:
    gate.open()
assert (mine.get() == sum(r + STEPS - 1 for r in range(size))).all()
herring.shutdown()
