"""A program of Horovod's in an elastic job without hvd.elastic.run: its optimizer averages too.

Rank 1 dies once, and leaves the file that the argument names: in a step, so that all begin anew; or
with the argument "late" after the last one of both, when nobody waits for it any more.
"""

import os
import signal
import sys
from pathlib import Path

import horovod.torch as hvd
import torch

from support import until

hvd.init()
model = torch.nn.Linear(2, 1, bias=False)
torch.nn.init.zeros_(model.weight)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0))
optimizer.set_backward_passes_per_step(2)
died = Path(sys.argv[1])
averaged = died.with_name("averaged")


def die_once():
    if hvd.rank() == 1 and not died.exists():
        died.touch()
        os.kill(os.getpid(), signal.SIGKILL)


for step in range(3):
    if step == 1 and "late" not in sys.argv:
        die_once()
    optimizer.zero_grad()
    for _ in range(2):
        model(torch.full((1, 2), float(hvd.rank()))).sum().backward()
    optimizer.step()
    expected = -(step + 1) * 2 * (hvd.size() - 1) / 2
    assert model.weight.tolist() == [[expected, expected]], (step, model.weight)
if "late" in sys.argv:
    if hvd.rank() == 0:
        averaged.touch()
    until(averaged.exists)
die_once()
print("averaged", flush=True)
