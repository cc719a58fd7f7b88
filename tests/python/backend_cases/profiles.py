"""Cases for ranges of the backend in torch.profiler."""

from __future__ import annotations

from unittest import mock

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

import herring.torch
from herring.torch import ranges
from herring.torch.backend.face import has_face

from .support import case


def ranges_of(work) -> list[str]:
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        work()
    names = [event.name for event in profiler.events()]
    return [name for name in names if name.startswith("herring::")]


@case
def works_are_ranges_in_a_profile():
    tensor = torch.ones(4)
    found = ranges_of(lambda: dist.all_reduce(tensor))
    assert len(found) == 2, found
    started, waited = found
    assert started.startswith("herring::allreduce 'torch."), found
    assert waited == started.replace("::allreduce ", "::wait "), found
    other = dist.get_rank() ^ 1

    def exchange() -> None:
        receives = dist.irecv(torch.empty(4), other)
        dist.send(tensor, other)
        receives.wait()

    found = ranges_of(exchange)
    assert sorted(found) == [
        f"herring::recv 'from {other}, tag 0'",
        f"herring::send 'to {other}, tag 0'",
        f"herring::wait 'from {other}, tag 0'",
        f"herring::wait 'to {other}, tag 0'",
    ], found


@case
def a_communication_hook_is_a_range_in_a_profile():
    model = DistributedDataParallel(torch.nn.Linear(4, 2))
    model.register_comm_hook(None, herring.torch.ddp_comm_hook)
    model(torch.ones(3, 4)).sum().backward()
    found = ranges_of(lambda: model(torch.ones(3, 4)).sum().backward())
    assert "herring::ddp_comm_hook 'bucket 0'" in found, found


@case
def without_a_profiler_a_work_asks_once_at_its_start_and_once_at_its_wait():
    asked = []
    refused = mock.Mock(side_effect=AssertionError("a range was made"))
    with (
        mock.patch.object(ranges, "_enabled", lambda: bool(asked.append(1))),
        mock.patch.object(ranges, "record_function", refused),
    ):
        work = dist.all_reduce(torch.ones(4), async_op=True)
        assert len(asked) == 1, asked
        work.wait()
        assert len(asked) == 2, asked


class Seen(TorchDispatchMode):
    """Collects what torch's dispatcher sees, as CommDebugMode does."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        self.names.append(str(function))
        return function(*arguments, **(options or {}))


@case
def tools_that_count_see_functional_collectives() -> None:
    """docs/torch-distributed.md says what they see, and what they do not before torch 2.14."""
    tensor, world = torch.ones(4), dist.group.WORLD
    with Seen() as seen:
        functional.all_reduce(tensor, "sum", world).wait()
    assert "_c10d_functional.all_reduce.default" in seen.names, seen.names
    with Seen() as seen:
        dist.all_reduce(tensor)
    assert has_face() or not any("c10d" in name for name in seen.names), seen.names

    def both() -> None:
        functional.all_reduce(tensor, "sum", world).wait()
        dist.all_reduce(tensor)

    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        both()
    names = [event.name for event in profiler.events()]
    assert "_c10d_functional::all_reduce" in names, names
    assert has_face() or "c10d::allreduce_" not in names, names
    assert len([name for name in names if name.startswith("herring::allreduce ")]) == 2, names
