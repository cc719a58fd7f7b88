"""Compares every form of every collective with gloo."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import (
    all_gather_tensor,
    all_reduce,
    all_reduce_coalesced,
    all_to_all_single,
    broadcast,
    reduce_scatter_tensor,
)

import herring

from .support import case, gloo, raises, same, uses_gloo

warnings.filterwarnings("ignore", category=FutureWarning)
OPS = dist.ReduceOp
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8]
UNSIGNED = [torch.uint16, torch.uint32, torch.uint64]
COMPLEX = [torch.complex64, torch.complex128]
FLOAT8 = [torch.float8_e4m3fn, torch.float8_e5m2]


def _values(rank: int, dtype: torch.dtype, count: int = 7) -> torch.Tensor:
    base = (torch.arange(count) * (rank + 2) + rank) % 5 + 1
    if dtype == torch.bool:
        return base % 2 == 0
    if dtype.is_complex:
        return torch.complex(base.double(), base.flip(0).double()).to(dtype)
    return base.to(torch.float32 if dtype in FLOAT8 else torch.int64).to(dtype)


def _reduced(op: object, dtype: torch.dtype, count: int = 7) -> torch.Tensor:
    rows = torch.stack([_values(r, dtype, count) for r in range(dist.get_world_size())])
    wide = rows.to(torch.complex128 if dtype.is_complex else torch.float64)
    if op == OPS.BAND:
        found = torch.stack([row.to(torch.int64) for row in rows])
        out = found[0]
        for row in found[1:]:
            out = out & row
        return out.to(dtype)
    if op in (OPS.BOR, OPS.BXOR):
        out = rows[0].to(torch.int64)
        for row in rows[1:]:
            out = out | row.to(torch.int64) if op == OPS.BOR else out ^ row.to(torch.int64)
        return out.to(dtype)
    if op == OPS.AVG:
        mean = wide.sum(0) / len(rows)
        exact = dtype.is_floating_point or dtype.is_complex
        return (mean if exact else mean.trunc()).to(dtype)
    if op == OPS.SUM:
        return wide.sum(0).to(torch.float32 if dtype in FLOAT8 else wide.dtype).to(dtype)
    if op == OPS.PRODUCT:
        return wide.prod(0).to(torch.float32 if dtype in FLOAT8 else wide.dtype).to(dtype)
    return (wide.amin(0) if op == OPS.MIN else wide.amax(0)).to(dtype)


def _alike(found: torch.Tensor, wanted: torch.Tensor) -> None:
    if wanted.dtype in FLOAT8:
        found, wanted = found.float(), wanted.float()
    assert found.dtype == wanted.dtype
    if found.dtype.is_floating_point or found.dtype.is_complex:
        torch.testing.assert_close(found, wanted)
    else:
        same(found, wanted)


@case
def operators_and_dtypes() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    plain = (OPS.SUM, OPS.AVG, OPS.MIN, OPS.MAX, OPS.PRODUCT)
    bits = (OPS.BAND, OPS.BOR, OPS.BXOR)
    table = {
        **dict.fromkeys([*FLOATS, *FLOAT8], plain),
        **dict.fromkeys([*INTEGERS, *UNSIGNED], plain + bits),
        **dict.fromkeys(COMPLEX, plain[:2]),
        torch.bool: [OPS.SUM, OPS.MIN, OPS.MAX, OPS.PRODUCT, *bits],
    }
    for dtype, operators in table.items():
        for op in operators:
            if dtype in (torch.int8, torch.uint8) and op == OPS.PRODUCT:
                continue  # the product wraps
            wanted = _reduced(op, dtype)
            tensor = _values(rank, dtype)
            if dtype == torch.bool and op == OPS.SUM:
                wanted = _reduced(OPS.MAX, dtype)
            dist.all_reduce(tensor, op)
            _alike(tensor, wanted)
            rooted = _values(rank, dtype)
            dist.reduce(rooted, 1, op)
            _alike(rooted, wanted if rank == 1 else _values(rank, dtype))
            output = torch.empty(7, dtype=dtype)
            dist.reduce_scatter_single(output, _values(rank, dtype).repeat(size), op)
            _alike(output, wanted)
    product = _values(rank, torch.complex64)
    dist.reduce(product, 0, OPS.PRODUCT)
    if rank == 0:
        _alike(product, _reduced(OPS.PRODUCT, torch.complex64))
    for factor in (0.5, torch.tensor([0.5])):
        premultiplied = dist._make_nccl_premul_sum(factor)
        tensor = _values(rank, torch.float32)
        dist.all_reduce(tensor, premultiplied)
        same(tensor, _reduced(OPS.SUM, torch.float32) / 2)
    wrong = [
        (torch.float32, OPS.BAND, "bitwise"),
        (torch.bool, OPS.AVG, "average is not defined"),
        (torch.int32, premultiplied, "PREMUL_SUM is for floats"),
    ]
    for dtype, op, text in wrong:
        raises(ValueError, text, dist.all_reduce, torch.ones(3, dtype=dtype), op)
    dist.all_reduce(torch.ones(2))  # the group still works


@case
def every_front() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    for dtype in (torch.float32, torch.int64, torch.complex64, torch.bfloat16):
        results = []
        for group in (None, gloo()):

            def own(rows: int, add: int = 0, dtype: torch.dtype = dtype) -> torch.Tensor:
                return _values(rank + add, dtype, rows * 3).view(rows, 3)

            found = []
            tensor = own(2)
            dist.broadcast(tensor, 2, group=group)
            found.append(tensor)
            lists = [torch.empty(2, 3, dtype=dtype) for _ in range(size)]
            dist.all_gather(lists, own(2), group=group)
            found += lists
            whole = torch.empty(2 * size, 3, dtype=dtype)
            dist.all_gather_single(whole, own(2), group=group)
            found.append(whole)
            if group is None:  # gloo does not accept this shape
                stacked = torch.empty(size, 2, 3, dtype=dtype)
                dist.all_gather_into_tensor(stacked, own(2))
                same(stacked.view(whole.shape), whole)
            at_root = [torch.empty(2, 3, dtype=dtype) for _ in range(size)]
            if group is None or not dtype.is_complex:  # gloo cannot gather complex numbers
                dist.gather(own(2), at_root if rank == 1 else None, dst=1, group=group)
            found += at_root if rank == 1 and not dtype.is_complex else []
            part = torch.empty(2, 3, dtype=dtype)
            dist.scatter(part, [own(2, a) for a in range(size)] if rank == 3 else None, 3, group)
            found.append(part)
            inputs = [own(2, a) for a in range(size)]
            if not dtype.is_complex:
                out = torch.empty(2, 3, dtype=dtype)
                dist.reduce_scatter(out, inputs, group=group)
                found.append(out)
                out = torch.empty(2, 3, dtype=dtype)
                dist.reduce_scatter_tensor(out, torch.cat(inputs), group=group)
                found.append(out)
            out = torch.empty(size, 3, dtype=dtype)
            dist.all_to_all_single(out, own(size), group=group)
            found.append(out)
            out = torch.empty(size * (rank + 1), 3, dtype=dtype)
            rows = [n + 1 for n in range(size)]
            dist.all_to_all_single(out, own(sum(rows)), [rank + 1] * size, rows, group=group)
            found.append(out)
            gone = [torch.empty(rank + 1, 3, dtype=dtype) for _ in range(size)]
            if group is None:  # gloo's version has different rules
                dist.all_to_all(gone, list(own(sum(rows)).split(rows)))
                same(torch.cat(gone), out)
            results.append(found)
        for one, other in zip(*results):
            same(one, other)
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank, "long": "x" * 100 * rank})
    assert [one["rank"] for one in objects] == list(range(size))
    shared = [("a", 1), None] if rank == 2 else [None, None]
    dist.broadcast_object_list(shared, 2)
    assert shared == [("a", 1), None]
    taken = [None]
    dist.scatter_object_list(taken, list("abcd")[:size] if rank == 0 else None, 0)
    assert taken == ["abcd"[rank]]
    kept = [None] * size if rank == 1 else None
    dist.gather_object(rank * 10, kept, 1)
    assert kept is None or kept == [0, 10, 20, 30]


@case
def uneven_strided_and_empty() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    total = size * (size + 1) / 2
    uneven = [torch.empty(n + 1) for n in range(size)]
    dist.all_gather(uneven, torch.full((rank + 1,), float(rank)))
    for n, one in enumerate(uneven):
        same(one, torch.full((n + 1,), float(n)))
    out = torch.empty(rank)
    dist.reduce_scatter(out, [torch.full((n,), rank + 1.0) for n in range(size)])
    same(out, torch.full((rank,), total))
    columns = torch.zeros(4, 6)
    dist.all_reduce(columns.fill_(rank + 1.0)[:, ::2])
    same(columns[:, ::2], torch.full((4, 3), total))
    same(columns[:, 1::2], torch.full((4, 3), rank + 1.0))
    last = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    dist.broadcast(last, 0)
    lists = [torch.empty(5, 4, 3, 2).permute(3, 2, 1, 0) for _ in range(size)]
    dist.all_gather(lists, last)
    assert all(torch.equal(one, last) for one in lists)
    target = torch.zeros(3, 2 * size).t()
    dist.all_gather_single(target, torch.full((2, 3), float(rank)))
    same(target, torch.arange(size).float().repeat_interleave(2)[:, None].expand(-1, 3))
    turned = torch.empty(3, size).t()
    dist.all_to_all_single(turned, torch.arange(3.0 * size).view(3, size).t())
    for empty in (torch.empty(0), torch.empty(0, 3, dtype=torch.int64), torch.empty(2, 0)):
        dist.all_reduce(empty)
        dist.broadcast(empty, 1)
        dist.all_gather([empty.clone() for _ in range(size)], empty)
        dist.all_reduce(empty, OPS.MAX)
        dist.reduce(empty, 0)
        dist.reduce_scatter(empty, [empty.clone() for _ in range(size)])
    dist.all_to_all_single(torch.empty(0, 4), torch.empty(0, 4))
    nothing = torch.empty(0)
    rows = [0] * size
    dist.all_to_all_single(nothing, nothing, rows, rows)
    scalar = torch.tensor(float(rank))
    dist.all_reduce(scalar, OPS.MAX)
    assert scalar.item() == size - 1
    leaf = torch.ones(3, requires_grad=True)
    loss = (leaf * leaf).sum()
    dist.all_reduce(leaf)  # like gloo, autograd sees no change
    loss.backward()
    if size > 2:
        wrong = [torch.empty(2) for _ in range(size)]
        raises(ValueError, "one for each rank", dist.all_gather, wrong[1:], torch.ones(2))
        raises(RuntimeError, "sent 4 bytes", dist.all_gather, wrong, torch.ones(1))


@case
def sparse_tensors() -> None:
    rank = dist.get_rank()
    for hybrid in (False, True):

        def make(hybrid: bool = hybrid) -> torch.Tensor:
            indices = torch.tensor([[rank, 1, rank], [0, 2, 0]])
            values = torch.arange(3.0) + rank
            values = values[:, None].expand(3, 2).contiguous() if hybrid else values
            return torch.sparse_coo_tensor(indices, values, (4, 3, 2) if hybrid else (4, 3))

        found, wanted = make(), make()
        dist.all_reduce(found)
        dist.all_reduce(wanted, group=gloo())
        same(found, wanted)
    raises(ValueError, "SUM and AVG", dist.all_reduce, make(), OPS.MAX)


@case
def coalesced_and_functional() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    total = size * (size + 1) / 2
    for asynchronous in (False, True):
        tensors = [torch.full((n,), rank + 1.0) for n in (3, 100_000, 1, 0)]
        with dist._coalescing_manager(async_ops=asynchronous) as manager:
            for tensor in tensors:
                dist.all_reduce(tensor)
        if asynchronous:
            manager.wait()
        for tensor in tensors:
            same(tensor, torch.full_like(tensor, total))
        outputs = [torch.empty(size * n) for n in (2, 5)]
        with dist._coalescing_manager(async_ops=asynchronous) as manager:
            for n, output in zip((2, 5), outputs):
                dist.all_gather_single(output, torch.full((n,), float(rank)))
        if asynchronous:
            manager.wait()
        same(outputs[0], torch.arange(size).float().repeat_interleave(2))
        results = [torch.empty(n) for n in (2, 5)]
        with dist._coalescing_manager(async_ops=asynchronous) as manager:
            for n, output in zip((2, 5), results):
                dist.reduce_scatter_single(output, torch.full((n * size,), rank + 1.0))
        if asynchronous:
            manager.wait()
        same(results[1], torch.full((5,), total))
    mixed = [torch.full((3,), rank + 1), torch.full((2,), rank + 1)]
    future = dist.all_reduce_coalesced(mixed, async_op=True)
    future.wait()
    same(mixed[0], torch.full((3,), int(total)))
    group = dist.group.WORLD
    same(all_reduce(torch.ones(3), "sum", group) + 0, torch.full((3,), float(size)))
    same(all_gather_tensor(torch.ones(2, 2), 0, group) + 0, torch.ones(2 * size, 2))
    same(all_gather_tensor(torch.ones(2, 2), 1, group) + 0, torch.ones(2, 2 * size))
    same(reduce_scatter_tensor(torch.ones(size * 2), "avg", 0, group) + 0, torch.ones(2))
    same(broadcast(torch.full((2,), float(rank)), 1, group) + 0, torch.ones(2))
    rows = [1] * size
    same(all_to_all_single(torch.ones(size, 2), rows, rows, group) + 0, torch.ones(size, 2))
    two = all_reduce_coalesced([torch.ones(2), torch.ones(3)], "sum", group)
    same(two[0] + 0, torch.full((2,), float(size)))
    same(two[1] + 0, torch.full((3,), float(size)))


@case
def futures_and_time_outs() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    works = [dist.all_reduce(torch.full((n,), 1.0), async_op=True) for n in (10, 200_000, 1)]
    futures = [work.get_future() for work in works]
    doubled = futures[1].then(lambda done: done.value()[0] * 2)
    same(doubled.wait(), torch.full((200_000,), 2.0 * size))
    for work in reversed(works):
        assert work.wait() and work.is_completed() and work.is_success()
    lists = [torch.zeros(3) for _ in range(size)]
    dropped = torch.full((3,), float(rank))
    dist.all_gather(lists, dropped, async_op=True)  # the work is dropped
    fold = torch.tensor([1 << rank], dtype=torch.int32)
    folded = dist.all_reduce(fold, OPS.BOR, async_op=True).get_future()
    assert folded.wait()[0].item() == 15 and fold.item() == 15
    dist.barrier(async_op=True).wait()
    if rank == 1:
        late = dist.barrier(async_op=True)
        raises(herring.TimeoutError, "goes on", late.wait, timedelta(milliseconds=20))
        assert not late.is_completed()
    gate = torch.zeros(1)
    dist.all_reduce(gate, group=gloo())
    if rank != 1:
        late = dist.barrier(async_op=True)
    assert late.wait()
    if rank == 0:
        options = dist.BarrierOptions()
        options.timeout = timedelta(milliseconds=200)
        raises(herring.TimeoutError, "rank", dist.group.WORLD.barrier(options).wait)
    dist.all_reduce(gate, group=gloo())
    if rank != 0:  # the other ranks' n-th call fails with rank 0's
        raises(herring.HerringError, "", dist.group.WORLD.barrier().wait)
    same(lists[1], torch.ones(3))
    if rank == 0:
        raises(herring.MismatchError, "", dist.all_reduce, torch.ones(3))
    else:
        raises(herring.MismatchError, "", dist.all_reduce, torch.ones(4))
    dist.barrier()


@case
def gathers_of_several_tensors():
    rank, size = dist.get_rank(), dist.get_world_size()
    mine = [torch.tensor([10.0 * rank + i]) for i in range(3)]
    found = [[torch.empty(1) for _ in range(3)] for _ in range(size)]
    dist.all_gather_coalesced(found, mine)
    assert [[each.item() for each in row] for row in found] == [
        [10.0 * r + i for i in range(3)] for r in range(size)
    ]


@case
def uneven_gathers_into_a_tensor():
    rank, size = dist.get_rank(), dist.get_world_size()
    count = 2 + rank % 2
    raises(
        herring.MismatchError,
        "ranks gave [",
        dist.all_gather_into_tensor,
        torch.empty(size * count),
        torch.ones(count),
    )
    dist.barrier()


@case
def groups_of_one():
    alone = dist.new_group([dist.get_rank()], use_local_synchronization=True)
    mine, found = torch.arange(6.0), torch.empty(6)
    dist.all_to_all_single(found, mine, group=alone)
    assert torch.equal(found, mine)
    blocks = [torch.empty(6)]
    dist.all_to_all(blocks, [mine + 1], group=alone)
    assert torch.equal(blocks[0], mine + 1)
    dist.gather(mine, blocks, dist.get_rank(), group=alone)
    assert torch.equal(blocks[0], mine)
    objects = [None]
    dist.gather_object({"rank": 1}, objects, dist.get_rank(), group=alone)
    assert objects == [{"rank": 1}]


@case
def forked_children():
    """The parent's operations complete only in the parent, and a forked child can exit."""
    tensor = torch.ones(4)
    first = dist.get_rank() == 0
    work = dist.all_reduce(tensor, async_op=True) if first else None
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        if work is not None:
            raises(herring.ShutdownError, "forked", work.wait)
        if uses_gloo():
            os._exit(7)
        sys.exit(7)  # ends through the interpreter's shutdown
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    herring.barrier()  # the others call only after this
    (work or dist.all_reduce(tensor, async_op=True)).wait()
    assert (tensor == dist.get_world_size()).all()


@case
def one_part_that_fails_is_enough():
    """Large blocks are sent one by one; a rank that refuses the first never calls the rest."""
    rank, count = dist.get_rank(), 1 << 18
    output = torch.empty(dist.get_world_size() * count + (rank == 1))
    gather = dist.all_gather_into_tensor
    raises(herring.InvalidArgumentError, "elements", gather, output, torch.ones(count))
    future = gather(output, torch.ones(count), async_op=True).get_future() if rank != 1 else None
    if future is None:
        raises(herring.InvalidArgumentError, "elements", gather, output, torch.ones(count))
    else:
        raises(RuntimeError, "elements", future.wait)
    dist.barrier()
