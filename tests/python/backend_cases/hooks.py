"""Cases for the completion hooks and abort hooks of process groups."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

import herring
from herring.torch.backend.face import has_face

from .support import case, raises


@case
def a_completion_hook_hears_of_every_work_that_ended_well() -> None:
    group = dist.new_group(list(range(dist.get_world_size())))
    told: list[Any] = []
    assert not group._has_hooks()
    group._register_on_completion_hook(told.append)
    assert group._has_hooks()
    raises(herring.InvalidArgumentError, "already", group._register_on_completion_hook, told.append)
    tensor = torch.ones(4)
    dist.all_reduce(tensor, group=group)
    works = [dist.broadcast(tensor, 0, group=group, async_op=True) for _ in range(3)]
    dist.barrier(group=group)
    for work in works:
        work.wait()
    group._wait_for_pending_works()
    kinds = [c10d.OpType.ALLREDUCE, *[c10d.OpType.BROADCAST] * 3, c10d.OpType.BARRIER]
    told.sort(key=lambda info: info.seq)
    assert [info.op_type for info in told] == kinds, told
    assert [info.seq for info in told] == [1, 2, 3, 4, 5], told
    assert all(info.active_duration >= timedelta(0) for info in told)
    assert all(info.time_finished - info.time_started == info.active_duration for info in told)
    dist.destroy_process_group(group)


@case
def destroying_a_group_waits_for_its_completion_hook() -> None:
    group = dist.new_group(list(range(dist.get_world_size())))
    called = threading.Event()
    begun = threading.Event()

    def slow(_info: Any) -> None:
        begun.wait(10)
        called.set()

    group._register_on_completion_hook(slow)
    dist.all_reduce(torch.ones(4), group=group)
    begun.set()
    dist.destroy_process_group(group)
    assert called.is_set()


@case
def an_abort_hook_is_called_before_an_abort_and_on_a_time_out() -> None:
    rank = dist.get_rank()
    group = dist.new_group(list(range(dist.get_world_size())), timeout=timedelta(seconds=6))
    told: list[str] = []
    group.register_abort_hook(1, lambda: told.append("first"))
    group.register_abort_hook(2, lambda: told.append("second"))
    group.unregister_abort_hook(2)
    dist.all_reduce(torch.ones(4), group=group)
    assert told == []
    if rank == 0:
        raises(herring.TimeoutError, "", dist.all_reduce, torch.ones(4), group=group)
        group._wait_for_pending_works()
        assert told == ["first"], told
    dist.barrier()
    before = len(told)
    group.abort()
    assert told[before:] == ["first"], told
    group.abort()
    assert told[before:] == ["first"], told
    dist.destroy_process_group(group)


@case
def hooks_that_raise_do_no_harm() -> None:
    group = dist.new_group(list(range(dist.get_world_size())))

    def broken(*_: Any) -> None:
        raise ValueError("this hook is broken")

    group._register_on_completion_hook(broken)
    group.register_abort_hook(1, broken)
    tensor = torch.ones(4)
    dist.all_reduce(tensor, group=group)
    assert tensor.tolist() == [dist.get_world_size()] * 4
    group._wait_for_pending_works()
    group.abort()
    dist.destroy_process_group(group)


@case
def c_plus_plus_registers_abort_hooks_with_the_backend() -> None:
    if not has_face() or not hasattr(c10d.Backend, "register_abort_hook"):
        return  # before torch 2.14
    group = dist.new_group(list(range(dist.get_world_size())))
    told: list[int] = []
    c10d.ProcessGroup.register_abort_hook(group, 7, lambda: told.append(7))
    c10d.ProcessGroup.register_abort_hook(group, 8, lambda: told.append(8))
    c10d.ProcessGroup.unregister_abort_hook(group, 8)
    group.abort()
    assert told == [7], told
    dist.destroy_process_group(group)
