"""Cases for ranges in torch.profiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F  # noqa: N812
from torch.profiler import ProfilerActivity, profile

import herring.torch as herring
from herring.torch import ranges

from .support import batch, case, group_case, mlp


def profiled(work: Callable[[], Any]) -> list[str]:
    """Returns the names of Herring's ranges in a profile."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        work()
    names = [event.name for event in profiler.events()]
    return [name for name in names if name.startswith("herring::")]


def collectives() -> None:
    tensor = torch.ones(8 * herring.size())
    herring.allreduce(tensor, name="loss")
    herring.allreduce_async(tensor, name="later").wait()
    herring.broadcast(tensor, name="weights")
    herring.allgather(tensor, name="all")
    herring.reduce(tensor, name="sum")
    herring.gather(tensor, name="parts")
    herring.scatter(tensor, name="dealt")
    herring.reduce_scatter(tensor, name="blocks")
    herring.alltoall(tensor, name="exchange")


def unnamed() -> None:
    herring.allreduce(torch.ones(4))
    herring.allgather(torch.ones(4))


@case
def collectives_are_ranges_in_a_profile():
    found = profiled(collectives)
    assert found == [
        "herring::allreduce 'loss'",
        "herring::allreduce_async 'later'",
        "herring::wait 'later'",
        "herring::broadcast 'weights'",
        "herring::allgather 'all'",
        "herring::reduce 'sum'",
        "herring::gather 'parts'",
        "herring::scatter 'dealt'",
        "herring::reduce_scatter 'blocks'",
        "herring::alltoall 'exchange'",
    ], found


@case
def profiled_calls_meet_calls_that_are_not():
    for profiling_rank in range(herring.size()):
        if herring.rank() == profiling_rank:
            found = profiled(unnamed)
            assert len(found) == 2 and found[0].startswith("herring::allreduce 'allreduce."), found
        else:
            unnamed()


@case
def rounds_are_ranges_in_a_profile():
    model = herring.DistributedDataParallel(mlp(), name="profiled")
    inputs, labels = batch(0, herring.rank())
    for _ in range(2):  # the order of gradients is known afterwards
        F.cross_entropy(model(inputs), labels).backward()
    found = profiled(lambda: F.cross_entropy(model(inputs), labels).backward())
    assert found == ["herring::round 'profiled'"], found
    model.close()
    net = mlp()
    optimizer = herring.DistributedOptimizer(
        torch.optim.SGD(net.parameters(), lr=0.1), name="stepped"
    )
    found = profiled(optimizer.step)
    assert found == ["herring::synchronize 'stepped'", "herring::round 'stepped'"], found
    optimizer.close()


@case
def partial_rounds_are_ranges_in_a_profile():
    model = herring.DistributedDataParallel(mlp(), sync="majority", name="some")
    inputs, labels = batch(0, herring.rank())

    def step() -> None:
        F.cross_entropy(model(inputs), labels).backward()
        for _ in model.rounds():
            pass

    assert "herring::round 'some'" in profiled(step)
    for _ in model.flush():
        pass
    model.close()


@case
def without_a_profiler_a_call_asks_once_and_makes_no_range():
    asked = 0

    def enabled() -> bool:
        nonlocal asked
        asked += 1
        return False

    refused = mock.Mock(side_effect=AssertionError("a range was made"))
    tensor = torch.ones(4)
    with (
        mock.patch.object(ranges, "_enabled", enabled),
        mock.patch.object(ranges, "record_function", refused),
    ):
        herring.allreduce(tensor)
        assert asked == 1
        herring.broadcast(tensor)
        assert asked == 2
        handle = herring.allreduce_async(tensor)
        assert asked == 3
        handle.wait()
        assert asked == 4


@group_case
def groups_are_ranges_in_a_profile():
    pairs = [herring.new_group([0, 1]), herring.new_group([2, 3])]
    mine = pairs[herring.rank() // 2]
    found = profiled(lambda: herring.allreduce(torch.ones(4), group=mine))
    assert len(found) == 1 and ".allreduce." in found[0], found
