"""Cases for compiled training steps with torch's own DistributedDataParallel."""

from __future__ import annotations

from typing import Any

import torch
import torch._dynamo as dynamo
import torch.distributed as dist
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

from .support import case, raises


def _net() -> torch.nn.Module:
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))


def _rows(step: int, rank: int) -> torch.Tensor:
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(100 * step + rank))


def _train(steps: int, whole: bool) -> torch.nn.Module:
    """Trains compiled, as dynamo is configured: a whole step is one function, or the module is."""
    net = _net()
    call: Any = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    if not whole:
        call = torch.compile(call, backend="aot_eager")

    def step(rows: torch.Tensor) -> None:
        optimizer.zero_grad()
        mse_loss(call(rows), rows[:, :2]).backward()
        optimizer.step()

    run = torch.compile(step, backend="aot_eager") if whole else step
    for number in range(steps):
        run(_rows(number, dist.get_rank()))
    return net


@case
def stock_ddp_compiled() -> None:
    """The ways of `optimize_ddp` train as one process does, or are refused by torch."""
    expected = _net()
    optimizer = torch.optim.SGD(expected.parameters(), lr=0.1)
    for number in range(2):
        rows = torch.cat([_rows(number, rank) for rank in range(dist.get_world_size())])
        optimizer.zero_grad()
        mse_loss(expected(rows), rows[:, :2]).backward()
        optimizer.step()
    ways = [("ddp_optimizer", True, False), ("no_optimization", False, False)]
    ways += [("python_reducer", True, True)]
    for value, whole, compiled_autograd in ways:
        dynamo.reset()
        with dynamo.config.patch(optimize_ddp=value, compiled_autograd=compiled_autograd):
            found = _train(2, whole)
        for mine, theirs in zip(found.parameters(), expected.parameters()):
            torch.testing.assert_close(mine, theirs)
    dynamo.reset()
    with dynamo.config.patch(compiled_autograd=True):
        raises(RuntimeError, "python_reducer", _train, 1, True)
    dynamo.reset()
