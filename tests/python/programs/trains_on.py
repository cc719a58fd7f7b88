"""Trains a small model on and on, until a signal ends it. Run with and without `--elastic`.

Every rank prints "trains, pid=N" when it has made some steps. With the argument "torch", PyTorch
computes the gradients.
"""

import os
import sys

import numpy as np

import herring
import herring.elastic

ELEMENTS = 200_000
STEPS = 5


def arrays() -> None:
    """Makes steps in which a plan, a named all-reduce and a barrier are under way."""
    plan = herring.PlannedReduction([(ELEMENTS, "float32")] * 4, name="model")
    arena = plan.arena(0).view(np.float32)
    step = 0
    while True:
        plan.begin()
        arena[:] = herring.rank() + step
        loss = herring.allreduce_async(np.array([1.0 / (step + 1)]), name="loss")
        plan.ready_all(range(4))
        plan.wait()
        loss.wait()
        herring.barrier()
        step += 1
        told(step)


def tensors() -> None:
    """Makes steps of a module in `herring.torch.DistributedDataParallel`."""
    import torch

    import herring.torch

    model = herring.torch.DistributedDataParallel(torch.nn.Linear(400, 400))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    step = 0
    while True:
        optimizer.zero_grad()
        model(torch.randn(8, 400)).square().sum().backward()
        optimizer.step()
        step += 1
        told(step)


def told(step: int) -> None:
    """Says once that this rank trains."""
    if step == STEPS:
        print(f"trains, pid={os.getpid()}", flush=True)


@herring.elastic.run
def train(_: herring.elastic.State) -> None:
    tensors() if "torch" in sys.argv else arrays()


try:
    train(herring.elastic.State())
except KeyboardInterrupt:
    if "torch" not in sys.argv:
        raise
    herring.shutdown()
    os._exit(1)  # PyTorch takes a second of a processor's time to end a process
