"""Cases for collectives on tensors."""

from __future__ import annotations

import torch
from torch import nn

import herring.torch as herring

from .support import case, raises


@case
def collectives():
    rank, size = herring.rank(), herring.size()
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        tensor = torch.full((5, 3), float(rank + 1), dtype=dtype)
        result = herring.allreduce(tensor)
        assert result is tensor
        assert torch.equal(tensor, torch.full_like(tensor, (size + 1) / 2))
        assert torch.equal(
            herring.allreduce(torch.tensor([rank + 1.0], dtype=dtype), "max"),
            torch.tensor([float(size)], dtype=dtype),
        )
        gathered = herring.allgather(torch.full((rank + 1, 2), float(rank), dtype=dtype))
        expected = torch.cat([torch.full((r + 1, 2), float(r), dtype=dtype) for r in range(size)])
        assert gathered.dtype == dtype
        assert torch.equal(gathered, expected)
        part = herring.reduce_scatter(
            torch.arange(2 * size, dtype=dtype).reshape(size, 2) + rank, "sum"
        )
        expected = torch.arange(2 * size, dtype=dtype).reshape(size, 2)[rank : rank + 1] * size
        assert part.dtype == dtype
        assert torch.equal(part, expected + sum(range(size)))
        last = [0] * (size - 1) + [size]
        part = herring.reduce_scatter(torch.ones(size, 2, dtype=dtype), "sum", last)
        assert torch.equal(part, torch.full((last[rank], 2), float(size), dtype=dtype))
        found = herring.reduce(tensor, "sum", size - 1)
        if rank == size - 1:
            assert torch.equal(found, tensor * size)
        else:
            assert found is None
        found = herring.gather(torch.full((rank + 1, 2), float(rank), dtype=dtype))
        assert torch.equal(found, gathered) if rank == 0 else found is None
        root = size - 1
        handed = torch.arange(6 * size, dtype=dtype).reshape(2 * size, 3)
        part = herring.scatter(handed if rank == root else None, root)
        assert part.dtype == dtype
        assert torch.equal(part.cpu(), handed[2 * rank : 2 * rank + 2].cpu())
        shares = [2 * size - (size - 1), *[1] * (size - 1)]  # rank 0 gets the remaining rows
        start = sum(shares[:rank])
        part = herring.scatter(handed if rank == root else None, root, shares)
        assert torch.equal(part.cpu(), handed[start : start + shares[rank]].cpu())
        rows = torch.arange(size, dtype=dtype).reshape(size, 1) + 10 * rank
        swapped = herring.alltoall(rows)
        expected = torch.tensor([[10.0 * r + rank] for r in range(size)], dtype=dtype)
        assert torch.equal(swapped, expected)
        shared = torch.full((3,), float(rank), dtype=dtype)
        assert herring.broadcast_(shared, root=size - 1) is shared
        assert torch.equal(shared, torch.full((3,), size - 1.0, dtype=dtype))
    counts = torch.tensor([rank, 1], dtype=torch.int64)
    assert herring.allreduce(counts, "sum").tolist() == [sum(range(size)), size]
    handles = [
        herring.allreduce_async(torch.full((100,), float(i)), "sum", name=f"async.{i}")
        for i in range(5)
    ]
    for i in reversed(range(5)):
        assert handles[i].wait()[0] == i * size
        assert handles[i].done()
    parameter = nn.Parameter(torch.full((4,), float(rank)))
    herring.broadcast(parameter, root=0)
    assert parameter.tolist() == [0.0] * 4
    scalar = torch.tensor(float(rank))
    assert herring.allreduce(scalar, "sum") is scalar
    assert scalar.item() == sum(range(size))
    assert herring.allgather(torch.tensor(float(rank))).tolist() == list(range(size))
    total = herring.reduce(torch.tensor(float(rank)), "sum")
    assert total.shape == () and total.item() == sum(range(size)) if rank == 0 else total is None
    splits = [(rank + r) % 3 for r in range(size)]
    blocks = torch.cat([torch.full((n,), 10 * rank + r) for r, n in enumerate(splits)])
    received = herring.alltoall(blocks, splits)
    expected = torch.cat([torch.full(((r + rank) % 3,), 10 * r + rank) for r in range(size)])
    assert torch.equal(received, expected)


@case
def bad_tensors():
    with raises(herring.InvalidArgumentError, "not contiguous"):
        herring.allreduce(torch.zeros(4, 5).t())
    with raises(herring.InvalidArgumentError, "sparse"):
        herring.allreduce(torch.zeros(4, 5).to_sparse())
    with raises(herring.InvalidArgumentError, "torch.Tensor"):
        herring.allreduce([1.0, 2.0])
    with raises(herring.InvalidArgumentError):
        herring.allreduce(torch.zeros(4, dtype=torch.complex64))
    with raises(herring.InvalidArgumentError):
        herring.allreduce(torch.zeros(4, dtype=torch.int32), "average")
    with raises(herring.HerringError, "not contiguous"):
        herring.scatter(torch.zeros(4, 5).t() if herring.rank() == 0 else None)
    with raises(herring.HerringError, "splits is [1]"):
        herring.scatter(torch.zeros(4), splits=[1])
    with raises(herring.InvalidArgumentError, "scatter: root is 99"):
        herring.scatter(torch.zeros(4), 99)
    assert herring.allreduce(torch.ones(2), "sum").tolist() == [herring.size()] * 2
