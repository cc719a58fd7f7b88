"""Compares steps and collectives that torch.compile has seen with those that it has not."""

from __future__ import annotations

import functools
import os
import tempfile
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import herring.horovod.torch as hvd
from herring.horovod.torch.starts import Starter

from .optimizers import Own
from .support import case, close, mlp, raises, same

Batch = tuple[torch.Tensor, torch.Tensor]


def batch_of(number: int) -> Batch:
    generator = torch.Generator().manual_seed(100 * number + hvd.rank())
    labels = torch.randint(0, 3, (4,), generator=generator)
    return torch.randn(4, 8, generator=generator), labels


def trained(how: str, passes: int = 1, **options: Any) -> nn.Module:
    """Trains a model for three steps that torch.compile sees in one of its ways, or not at all."""
    model = mlp()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        named_parameters=model.named_parameters(),
        backward_passes_per_step=passes,
        **options,
    )

    def run(batches: list[Batch]) -> None:
        optimizer.zero_grad()
        for inputs, labels in batches:
            F.cross_entropy(model(inputs), labels).backward()
        optimizer.synchronize()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        with optimizer.skip_synchronize():
            optimizer.step()

    dynamo = torch._dynamo
    dynamo.reset()
    if how == "reduce-overhead":
        run = torch.compile(run, mode=how)
    elif how.startswith("step"):
        run = torch.compile(run, backend="aot_eager")
    for step in range(3):
        batches = [batch_of(step * passes + number) for number in range(passes)]
        if how == "step and backward pass":
            with dynamo.config.patch(compiled_autograd=True):
                run(batches)
        elif how == "backward pass":
            with dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager")):
                run(batches)
        else:
            run(batches)
    return model


@case
def compiled_steps():
    with tempfile.TemporaryDirectory() as folder:  # what Inductor compiles
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        compare_steps()


def compare_steps() -> None:
    everything = ("step", "step and backward pass", "backward pass", "reduce-overhead")
    for options, ways in (
        ({"compression": Own}, ("step and backward pass",)),
        ({}, everything),
        ({"passes": 2, "op": hvd.Sum}, ("backward pass",)),
    ):
        expected = trained("as it is", **options)
        for how in ways:
            close(trained(how, **options), expected)
            traced = torch._dynamo.eval_frame._debug_get_cache_entry_list
            assert not traced(Starter.allreduce.__code__)  # which hooks call in a backward pass


@case
def compiled_adasum():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), op=hvd.Adasum)

    @torch.compile(backend="aot_eager")
    def run(inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        return hvd.allreduce(loss.detach())

    for step in range(3):
        mean = run(*batch_of(step))
    same(model)
    assert len({*hvd.allgather_object(mean.item())}) == 1


@case
def compiled_collectives():
    """A compiled function calls them between two graphs, and gradients go through them."""

    def work(x: torch.Tensor) -> torch.Tensor:
        y = hvd.allgather(hvd.allreduce(x * 2, op=hvd.Sum) + 1)
        y = hvd.synchronize(hvd.allreduce_async(y.detach(), op=hvd.Sum)) * y
        y = hvd.alltoall(hvd.broadcast(y, 0)[: hvd.size()])
        hvd.barrier()
        first, second = hvd.grouped_allreduce([hvd.reducescatter(y), y.sum()], op=hvd.Sum)
        return (first * second).sum() + hvd.allreduce_(torch.ones(1), op=hvd.Sum).sum()

    found = []
    for function in work, torch.compile(work, backend="aot_eager"):
        x = torch.full((hvd.size(), 2), 1.0 + hvd.rank(), requires_grad=True)
        result = function(x)
        result.backward()
        found.append((result.item(), x.grad.tolist()))
    assert found[0] == found[1], found


@case
def one_graph_of_all():
    """A graph cannot hold an exchange, and torch's error says so before anything moves."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    in_one = functools.partial(torch.compile, backend="eager", fullgraph=True)
    for function in (
        lambda: hvd.allreduce(torch.ones(1)),
        lambda: optimizer.zero_grad(),
        lambda: optimizer.step(),
    ):
        advice = "compile the module alone"
        raises(torch._dynamo.exc.Unsupported, advice, in_one(function))
    F.cross_entropy(in_one(model)(batch_of(0)[0]), batch_of(0)[1]).backward()
    optimizer.step()
    same(model)
