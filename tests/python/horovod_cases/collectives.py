"""Cases for collectives: dtypes, empty and strided tensors, handles, gradients, process sets."""

from __future__ import annotations

import torch

import herring
import herring.horovod.torch as hvd
from herring.horovod.common.handles import _calls as calls

from .support import case, raises

DTYPES = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16),
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
)


@case
def every_dtype():
    rank, size = hvd.rank(), hvd.size()
    total = size * (size + 1) // 2
    for dtype in DTYPES:
        average = (size + 1) / 2 if dtype.is_floating_point else (size + 1) // 2
        tensor = torch.full((3, 2), rank + 1, dtype=dtype)
        found = hvd.allreduce(tensor, op=hvd.Sum)
        assert found.dtype == dtype and (found == total).all() and (tensor == rank + 1).all()
        assert (hvd.allreduce(tensor) == average).all()
        assert (hvd.allreduce(tensor, average=False) == total).all()
        scaled = hvd.allreduce(tensor, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0)
        cut = 4 * sum((r + 1) // 2 for r in range(size))  # integers are cut before the sum
        assert (scaled == (2 * total if dtype.is_floating_point else cut)).all()
        assert hvd.allreduce_(tensor, op=hvd.Max) is tensor and (tensor == size).all()
        rows = torch.full((rank, 2), rank, dtype=dtype)
        every = torch.cat([torch.full((r, 2), r, dtype=dtype) for r in range(size)])
        assert torch.equal(hvd.allgather(rows), every)
        one, other = hvd.grouped_allgather([rows, torch.ones(1)])
        assert torch.equal(one, every) and len(other) == size
        shared = torch.full((2,), rank, dtype=dtype)
        assert hvd.broadcast_(shared, size - 1) is shared and (shared == size - 1).all()
        assert (hvd.broadcast(torch.full((2,), rank, dtype=dtype), 0) == 0).all()
        sent = torch.full((total, 3), rank, dtype=dtype)
        came, splits = hvd.alltoall(sent, splits=torch.arange(1, size + 1))
        assert splits.dtype == torch.int32 and splits.tolist() == [rank + 1] * size
        expected = [torch.full((rank + 1, 3), r, dtype=dtype) for r in range(size)]
        assert torch.equal(came, torch.cat(expected))
        part = hvd.reducescatter(torch.full((size + 1, 2), rank + 1, dtype=dtype), op=hvd.Sum)
        assert part.dtype == dtype and (part == total).all() and len(part) == 1 + (rank == 0)
        ones = torch.full((size, 2), rank + 1, dtype=dtype)
        assert (hvd.reducescatter(ones) == average).all()
        one, other = hvd.grouped_reducescatter([ones, torch.ones(size)])
        assert one.dtype == dtype and (one == average).all() and other.tolist() == [1]
        one, other = hvd.grouped_allreduce([ones, torch.tensor(rank + 1.0)])
        assert one.dtype == dtype and (one == average).all() and other == (size + 1) / 2
        pair = [ones, torch.tensor(rank + 1.0)]
        assert hvd.grouped_allreduce_(pair, op=hvd.Min)[1] is pair[1]
        assert (pair[0] == 1).all() and pair[1] == 1
    flags = torch.tensor([True, rank == 0])
    assert hvd.allreduce(flags, op=hvd.Min).tolist() == [True, size == 1]
    narrow = hvd.allreduce(torch.tensor([200], dtype=torch.uint8))
    assert narrow.item() == 200  # summed in float64, so it does not wrap
    sent = torch.full((2,), 1.5)
    for compression in (hvd.Compression.fp16, hvd.Compression.fp8, hvd.Compression.int8):
        assert torch.equal(hvd.allreduce(sent, compression=compression), sent)


@case
def shapes():
    rank, size = hvd.rank(), hvd.size()
    assert hvd.allreduce(torch.empty(0, 3)).shape == (0, 3)
    assert hvd.allgather(torch.empty(0, 3)).shape == (0, 3)
    assert hvd.allgather(torch.empty(2, 0)).shape == (2 * size, 0)
    assert hvd.allgather(torch.tensor(1.0)).shape == (size,)
    assert hvd.broadcast(torch.empty(0), 0).shape == (0,)
    assert hvd.reducescatter(torch.empty(0, 2)).shape == (0, 2)
    assert hvd.alltoall(torch.empty(0, 3)).shape == (0, 3)
    found, splits = hvd.alltoall(torch.empty(size, 0), splits=[1] * size)
    assert found.shape == (size, 0) and splits.tolist() == [1] * size
    assert hvd.grouped_allreduce([]) == hvd.grouped_allgather([]) == []
    turned = (torch.arange(6.0).view(2, 3) + rank).t()
    expected = torch.arange(6.0).view(2, 3).t() * size + sum(range(size))
    assert torch.equal(hvd.allreduce(turned, op=hvd.Sum), expected)
    whole = torch.zeros(4, 4)
    column = whole[:, 1]
    column += rank
    assert hvd.allreduce_(column, op=hvd.Max) is column
    assert (whole[:, 1] == size - 1).all() and (whole[:, 0] == 0).all()
    parameter = torch.nn.Parameter(torch.full((2,), float(rank)))
    hvd.broadcast_(parameter, size - 1)
    assert (parameter == size - 1).all()


@case
def handles():
    rank = hvd.rank()
    handle = hvd.allreduce_async(torch.ones(3), name="one")
    assert isinstance(handle, int)
    assert (hvd.synchronize(handle) == 1).all()
    assert hvd.synchronize(handle) is None
    raises(ValueError, f"handle {handle}", hvd.poll, handle)
    numbers = list(range(20)) if rank % 2 else list(reversed(range(20)))
    started = {
        i: hvd.allreduce_async_(torch.full((1000,), float(i)), name=f"tensor{i}") for i in numbers
    }
    assert [hvd.synchronize(started[i])[0].item() for i in range(20)] == list(range(20))
    started = [
        hvd.grouped_allreduce_async([torch.ones(2)], name="a"),
        hvd.grouped_allreduce_async_([torch.ones(2)], name="b"),
        hvd.grouped_allgather_async([torch.ones(2)], name="a"),
        hvd.grouped_reducescatter_async([torch.ones(hvd.size())], name="a"),
        hvd.allgather_async(torch.ones(2), name="a"),
        hvd.broadcast_async(torch.ones(2), 0, name="a"),
        hvd.broadcast_async_(torch.ones(2), 0, name="b"),
        hvd.alltoall_async(torch.ones(hvd.size()), name="a"),
        hvd.reducescatter_async(torch.ones(hvd.size()), name="a"),
    ]
    for handle in reversed(started):
        found = hvd.synchronize(handle)
        assert ((found[0] if isinstance(found, (list, tuple)) else found) == 1).all()
    sent = torch.arange(2.0 * hvd.size())
    output, received = hvd.synchronize(hvd.alltoall_async(sent, name="split"))
    assert len(output) == 2 * hvd.size() and received.tolist() == [2] * hvd.size()
    # A name is in use until the program knows of the end of its operation, not until that end. So
    # all ranks refuse the second call, whenever the first is complete.
    handle = hvd.allreduce_async(torch.ones(3), name="known")
    calls[handle].wait()  # does not take the result
    raises(ValueError, "'known' is in flight", hvd.allreduce_async, torch.ones(3), name="known")
    assert hvd.poll(handle)
    other = hvd.allreduce_async(torch.ones(3), name="known")
    assert (hvd.synchronize(handle) == 1).all()
    raises(ValueError, "'known' is in flight", hvd.allreduce_async, torch.ones(3), name="known")
    assert (hvd.synchronize(other) == 1).all()
    # The other ranks do not learn of a call that is refused for its name.
    handle = None
    if rank == 0:
        handle = hvd.allreduce_async(torch.ones(3), name="twice")
        raises(ValueError, "'twice' is in flight", hvd.allreduce_async, torch.ones(3), name="twice")
        assert not hvd.poll(handle) or hvd.size() == 1
    hvd.barrier()
    handle = handle or hvd.allreduce_async(torch.ones(3), name="twice")
    assert (hvd.synchronize(handle) == 1).all()
    assert (hvd.allreduce(torch.ones(3), name="twice") == 1).all()


@case
def gradients():
    rank, size = hvd.rank(), hvd.size()

    def gradient_of(function, *shape):
        tensor = torch.ones(shape, requires_grad=True)
        function(tensor).sum().backward()
        return tensor.grad

    mean = (size + 1) / 2
    weighted = {
        "sum": lambda x: hvd.allreduce(x, op=hvd.Sum) * (rank + 1),
        "average": lambda x: hvd.allreduce(x) * (rank + 1),
        "gathered": lambda x: hvd.allgather(x) * (rank + 1),
        "group": lambda x: sum(one.sum() for one in hvd.grouped_allreduce([x, x])) * (rank + 1),
        "wholes": lambda x: sum(one.sum() for one in hvd.grouped_allgather([x, x])) * (rank + 1),
    }
    factors = {"sum": size * mean, "group": 2 * mean, "wholes": 2 * mean}
    for kind, function in weighted.items():
        found = gradient_of(function, rank + 1 if kind in ("gathered", "wholes") else 2, 3)
        assert torch.allclose(found, torch.full_like(found, factors.get(kind, mean))), kind
    found = gradient_of(lambda x: hvd.broadcast(x, 0), 3)
    assert (found == (rank == 0)).all()
    found = gradient_of(lambda x: hvd.alltoall(x, splits=[2] * size)[0] * (rank + 1), 2 * size, 2)
    assert torch.equal(found[:, 0], torch.arange(1.0, size + 1).repeat_interleave(2))
    assert (gradient_of(lambda x: hvd.reducescatter(x, op=hvd.Sum), size, 2) == size).all()
    assert (gradient_of(lambda x: hvd.grouped_reducescatter([x, x])[0], size, 2) == 1).all()
    raises(ValueError, "no gradient", gradient_of, lambda x: hvd.allreduce(x, op=hvd.Max), 2)


@case
def adasum():
    rank, size = hvd.rank(), hvd.size()
    if size & (size - 1):
        raises(ValueError, "power of two", hvd.allreduce, torch.ones(1), op=hvd.Adasum)
        return
    vectors = [
        torch.randn(7, generator=torch.Generator().manual_seed(r)).double() for r in range(size)
    ]
    level = vectors
    while len(level) > 1:
        level = [
            (1 - a @ b / (2 * a @ a)) * a + (1 - a @ b / (2 * b @ b)) * b
            for a, b in zip(level[::2], level[1::2])
        ]
    assert torch.allclose(hvd.allreduce(vectors[rank], op=hvd.Adasum), level[0])
    one, other = hvd.grouped_allreduce([vectors[rank].float(), vectors[0]], op=hvd.Adasum)
    assert torch.allclose(one.double(), level[0], atol=1e-5)
    assert torch.allclose(other, vectors[0])  # equal vectors give their mean
    zeros = torch.zeros(3, dtype=torch.bfloat16)
    assert hvd.allreduce_(zeros, op=hvd.Adasum) is zeros and not zeros.any()
    # Scaling is not rounded to 16 bits, in which 2**-26 would be zero.
    half, scales = torch.full((3,), 1.0, dtype=torch.float16), (2.0**-26, 2.0**26)
    assert hvd.allreduce(
        half, op=hvd.Adasum, prescale_factor=scales[0], postscale_factor=scales[1]
    ).tolist() == [1.0, 1.0, 1.0]
    for factor in ("prescale_factor", "postscale_factor") if size > 1 else ():
        text = f"{factor} {rank + 2.0}"
        scale = {"op": hvd.Adasum, factor: rank + 2.0}
        raises(herring.MismatchError, text, hvd.allreduce, torch.ones(2), **scale)
        raises(herring.MismatchError, text, hvd.grouped_allreduce, [torch.ones(2)], **scale)
        scale = {"op": hvd.Sum, factor: rank + 2.0}  # Integers are multiplied before the core.
        whole = torch.ones(size, dtype=torch.int32)
        for call, given in (
            (hvd.allreduce, whole),
            (hvd.grouped_allreduce, [whole]),
            (hvd.reducescatter, whole),
            (hvd.grouped_reducescatter, [whole]),
        ):
            raises(herring.MismatchError, f"{rank + 2}", call, given, **scale)
    raises(ValueError, "floats", hvd.allreduce, torch.ones(2, dtype=torch.int32), op=hvd.Adasum)


@case
def sparse():
    rank, size = hvd.rank(), hvd.size()
    tensor = torch.sparse_coo_tensor(
        torch.tensor([[0, rank + 1]]), torch.ones(2, 2), (size + 1, 2), check_invariants=True
    )
    handle = hvd.sparse_allreduce_async(tensor, name="rows", op=hvd.Sum)
    assert isinstance(handle, int)
    found = handle().to_dense()
    assert (found[0] == size).all() and (found[1:] == 1).all()
    found = hvd.synchronize(hvd.sparse_allreduce_async(tensor, "rows", hvd.Average)).to_dense()
    assert (found[0] == 1).all()


@case
def process_sets():
    rank, size = hvd.rank(), hvd.size()
    ends = hvd.add_process_set([size - 1, 0])
    later = hvd.add_process_set(hvd.ProcessSet(range(1, size)))
    assert (
        ends.ranks == [0, size - 1] and ends.size() == 2 and hvd.global_process_set.size() == size
    )
    raises(ValueError, "already", hvd.add_process_set, [0, size - 1])
    raises(ValueError, "already", hvd.add_process_set, range(size))
    if later.included():  # overlapping process sets may be called in any order
        handle = hvd.allreduce_async(torch.ones(2), name="x", op=hvd.Sum, process_set=later)
    if ends.included():
        total = hvd.allreduce(torch.tensor([rank]), name="x", op=hvd.Sum, process_set=ends)
        assert total.item() == size - 1 and ends.rank() == int(rank > 0)
        assert hvd.broadcast(torch.tensor([rank]), size - 1, process_set=ends).item() == size - 1
        raises(ValueError, "root_rank is 1", hvd.broadcast, torch.ones(1), 1, process_set=ends)
        assert hvd.broadcast_object(rank, size - 1, process_set=ends) == size - 1
    else:
        raises(ValueError, f"rank {rank} is not in", hvd.allreduce, torch.ones(1), process_set=ends)
    if later.included():
        assert (hvd.synchronize(handle) == size - 1).all()
        hvd.barrier(process_set=later)
    assert hvd.remove_process_set(ends) and hvd.remove_process_set(later)
    assert not hvd.remove_process_set(ends)
    assert not hvd.remove_process_set(hvd.global_process_set)
    raises(ValueError, "not registered", hvd.allreduce, torch.ones(1), process_set=ends)
    raises(RuntimeError, "disagree", hvd.add_process_set, [0, 1] if rank else [0])
    alone = hvd.add_process_set([0])
    if rank == 0:
        x = torch.arange(12.0).view(3, 2, 2).requires_grad_()
        came, counts = hvd.alltoall(x, [3], process_set=alone)
        assert came.equal(x) and counts.tolist() == [3]
        came.sum().backward()
        assert x.grad.equal(torch.ones(3, 2, 2))
        assert hvd.alltoall(x, process_set=alone).shape == x.shape
    hvd.remove_process_set(alone)


@case
def who_and_what():
    assert hvd.is_initialized()
    assert hvd.cross_size() == herring.num_nodes() and hvd.cross_rank() == herring.node_rank()
    assert hvd.is_homogeneous() == (hvd.local_size() * hvd.cross_size() == hvd.size())
    assert not any([hvd.mpi_built(), hvd.gloo_enabled(), hvd.nccl_built(), hvd.cuda_built()])
    assert hvd.broadcast_object({"rank": hvd.rank()}, root_rank=1, name="o") == {"rank": 1}
    assert hvd.allgather_object(hvd.rank(), name="o") == list(range(hvd.size()))
    raises(ValueError, "op is 9", hvd.allreduce, torch.ones(1), op=9)
    raises(ValueError, "pass op only", hvd.allreduce, torch.ones(1), average=True, op=hvd.Sum)
