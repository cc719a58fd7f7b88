"""Cases for ranks that disagree, futures that wait for futures, and aborted groups."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

import herring

from .support import case, raises

OPS = dist.ReduceOp


@case
def disagreements_are_errors() -> None:
    """Ranks that disagree get errors, even where the core only moves bytes."""
    rank, size = dist.get_rank(), dist.get_world_size()
    odd = rank == 1
    ints = torch.ones(8, dtype=torch.int32)
    words = torch.ones(8, dtype=torch.uint16)
    small = torch.ones(8).to(torch.float8_e4m3fn)
    blocks = [torch.ones(2, dtype=torch.uint16) for _ in range(size)]
    shorts = [torch.ones(2, dtype=torch.int16) for _ in range(size)]
    half = words.view(torch.int16)
    copies = [ints.clone() for _ in range(size)]
    root = int(odd)
    calls: list[tuple[Callable[..., Any], ...]] = [
        (lambda: dist.all_reduce(ints, OPS.BXOR), lambda: dist.all_reduce(ints, OPS.BAND)),
        (lambda: dist.all_reduce(ints, OPS.AVG), lambda: dist.all_reduce(ints)),
        (lambda: dist.all_reduce(words), lambda: dist.all_reduce(half)),
        (lambda: dist.all_reduce(words, OPS.MAX), lambda: dist.all_reduce(words, OPS.MIN)),
        (
            lambda: dist.all_reduce(small),
            lambda: dist.all_reduce(small.view(torch.float8_e5m2)),
        ),
        (
            lambda: dist.all_reduce_coalesced([torch.ones(4), torch.ones(6)]),
            lambda: dist.all_reduce_coalesced([torch.ones(6), torch.ones(4)]),
        ),
        (lambda: dist.reduce(ints, root, OPS.BXOR),) * 2,
        (lambda: dist.reduce(ints, root),) * 2,
        (
            lambda: dist.gather(ints, copies if rank == 0 else None, 0),
            lambda: dist.gather(ints, copies, 1),
        ),
        (
            lambda: dist.all_to_all([torch.empty_like(one) for one in blocks], blocks),
            lambda: dist.all_to_all([torch.empty_like(one) for one in shorts], shorts),
        ),
        (
            lambda: dist.all_gather([torch.empty_like(words) for _ in blocks], words),
            lambda: dist.all_gather([torch.empty_like(half) for _ in blocks], half),
        ),
        (
            lambda: dist.all_reduce(torch.ones(3).to_sparse()),
            lambda: dist.all_reduce(torch.ones(4).to_sparse()),
        ),
    ]
    for number, (right, wrong) in enumerate(calls):
        try:
            wrong() if odd else right()
        except herring.MismatchError as error:
            assert "disagree" in str(error), (number, error)
        else:
            raise AssertionError(f"pair {number} of calls: no rank has refused it")
    dist.all_reduce(ints)  # the group still works
    try:
        dist.all_reduce(words, OPS.MIN if odd else OPS.MAX)
    except herring.MismatchError as error:
        for mine in ("min", "max"):  # the error names both operators
            assert f"(all_reduce, {mine} of torch.uint16)" in str(error), error
    else:
        raise AssertionError("ranks disagree, and nobody has said so")


@case
def elements_that_share_memory_are_refused_before() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    refused = (herring.InvalidArgumentError, "share memory")

    def shared(count: int = 4) -> torch.Tensor:
        return torch.ones(1).expand(count)

    many = [torch.ones(4) for _ in range(size)]
    raises(*refused, dist.all_reduce, shared())
    raises(*refused, dist.broadcast, shared(), 0)
    raises(*refused, dist.all_gather, [shared() for _ in range(size)], torch.ones(4))
    raises(*refused, dist.all_gather_into_tensor, shared(4 * size), torch.ones(4))
    raises(*refused, dist.reduce_scatter, shared(), many)
    raises(*refused, dist.reduce_scatter_tensor, shared(), torch.ones(4 * size))
    raises(*refused, dist.all_to_all, [shared() for _ in range(size)], many)
    raises(*refused, dist.all_to_all_single, shared(size), torch.ones(size))
    raises(*refused, dist.recv, shared(), (rank + 1) % size)
    # Ranks whose tensor could be written get the error too, and their tensor is unchanged.
    tensor = shared() if rank == 1 else torch.full((4,), 7.0)
    raises(herring.InvalidArgumentError, "share memory", dist.all_reduce, tensor)
    assert rank == 1 or tensor.tolist() == [7.0] * 4, tensor
    given = shared()  # tensors that are only read may share memory
    found = torch.zeros(4 * size)
    dist.all_gather_into_tensor(found, given)
    assert found.tolist() == [1.0] * 4 * size
    if rank != 0:
        dist.reduce(given, 0)
    else:
        dist.reduce(tensor, 0)
        assert tensor.tolist() == [7.0 + size - 1] * 4


@case
def advice_helps() -> None:
    group = dist.new_group(timeout=timedelta(seconds=2))  # also for the group to be made
    if dist.get_rank() == 0:
        raises(herring.TimeoutError, "of init_process_group or new_group;", dist.barrier, group)
    dist.barrier()
    on_cuda = dist.new_group(backend="cuda:herring")
    raises(
        RuntimeError, "'cuda:herring,cpu:herring'", dist.all_reduce, torch.ones(1), group=on_cuda
    )
    raises(RuntimeError, "on meta", dist.all_reduce, torch.ones(1, device="meta"))
    dist.barrier()


@case
def futures_wait_for_futures() -> None:
    """A callback of one future may wait for another, as in some of torch's hooks."""
    size = dist.get_world_size()

    def summed(value: float) -> torch.futures.Future[Any]:
        return dist.all_reduce(torch.full((100_000,), value), async_op=True).get_future()

    def again(done: torch.futures.Future[Any]) -> torch.Tensor:
        return summed(done.value()[0][0].item()).wait()[0]

    def once_more(done: torch.futures.Future[Any]) -> float:
        return summed(done.value()[0].item()).wait()[0][0].item()

    first = summed(1.0)
    last = summed(1.0)
    chain = first.then(lambda _: last.wait()[0][0].item())
    assert chain.wait() == size
    # This also holds if the waiting thread completes the work, or if a rank sends to itself.
    received, own = torch.empty(3), dist.get_rank()
    message = dist.irecv(received, own)
    work = dist.all_reduce(torch.ones(1_000_000), async_op=True)
    # If the work is over already, torch calls the callback in `then`, where it must not wait.
    registered = threading.Event()
    after = work.get_future().then(lambda _: not registered.is_set() or message.wait())
    registered.set()
    following = message.get_future().then(lambda _: message.wait())
    work.wait()
    dist.isend(torch.ones(3), own)
    assert after.wait() and following.wait() and received.tolist() == [1.0] * 3
    for _ in range(3):  # in turn, so all ranks have the same order of calls
        assert summed(1.0).then(again).then(once_more).wait() == size**3


@case
def aborted_groups() -> None:
    """Futures and waits of a group that this rank aborts fail at once; other groups continue."""
    rank = dist.get_rank()
    group = dist.new_group()
    if rank == 0:
        failed = threading.Event()
        future = dist.all_reduce(torch.ones(3), group=group, async_op=True).get_future()
        chained = future.then(lambda done: done.value())
        chained.add_done_callback(lambda _: failed.set())
        to_itself = dist.irecv(torch.ones(3), 0, group=group)
        unmet = to_itself.get_future()
        group.abort()
        assert failed.wait(600)
        raises(RuntimeError, "aborted", chained.wait)
        raises(RuntimeError, "aborted", unmet.wait)
        raises(herring.HerringError, "aborted", to_itself.wait)
        late = dist.all_reduce(torch.ones(3), async_op=True)
    else:
        late = dist.all_reduce(torch.ones(3), async_op=True)
    late.wait()
    alone = dist.new_group([rank], use_local_synchronization=True)
    works = [dist.irecv(torch.ones(3), rank, group=alone, tag=tag) for tag in (1, 2)]
    one, two = (work.get_future() for work in works)
    crossed = [one.then(lambda _: two.wait()), two.then(lambda _: one.wait())]
    alone.abort()  # each callback waits for the other future
    for future in crossed:
        raises(RuntimeError, "aborted", future.wait)
    other = dist.new_group()
    message = dist.irecv(torch.ones(3), rank, group=other)
    dist.barrier()
    dist.destroy_process_group(other)
    raises(herring.HerringError, "destroyed", message.wait)
