"""Checks how many bytes each call of Horovod's API copies from the GPU and back."""

import torch

import herring.horovod.torch as hvd
from gpus import Driver

hvd.init()
driver, rank, size = Driver(), hvd.rank(), hvd.size()
N = 50_000
WHOLE = 4 * N


def moved(call, *arguments, out, back, **options):
    before = driver.bytes()
    found = call(*arguments, **options)
    found = hvd.synchronize(found) if isinstance(found, int) else found
    after = driver.bytes()
    assert (after[0] - before[0], after[1] - before[1]) == (out, back), (call, before, after)
    assert after[2] == 0  # All memory is pinned.
    return found


def mine(dtype=torch.float32):
    return torch.full((N,), rank + 1, dtype=dtype)


total = sum(r + 1 for r in range(size))
for call in (hvd.allreduce, hvd.allreduce_async, hvd.allreduce_, hvd.allreduce_async_):
    tensor = mine()
    found = moved(call, tensor, op=hvd.Sum, name="x", out=WHOLE, back=WHOLE)
    in_place = call.__name__.endswith("_")
    assert (found is tensor) == in_place and (found == total).all(), call
    assert (tensor == (total if in_place else rank + 1)).all(), call
for call in (hvd.grouped_allreduce, hvd.grouped_allreduce_, hvd.grouped_allreduce_async_):
    pair = [mine(), mine(torch.float64)]
    found = moved(call, pair, op=hvd.Sum, out=3 * WHOLE, back=3 * WHOLE, prescale_factor=0.5)
    assert all((one == total / 2).all() for one in found), call
for call in (hvd.broadcast, hvd.broadcast_async, hvd.broadcast_, hvd.broadcast_async_):
    tensor = mine()
    found = moved(call, tensor, 1, out=WHOLE if rank == 1 else 0, back=WHOLE)
    assert (found is tensor) == call.__name__.endswith("_") and (found == 2).all(), call

# These are a strided tensor in place, a compressor, and integers. The GPU sums integers, and the
# host averages them.
strided = mine().view(100, -1).t()
found = moved(hvd.allreduce_, strided, op=hvd.Sum, out=WHOLE, back=WHOLE)
assert found is strided and (strided == total).all()
half = moved(
    hvd.allreduce,
    mine(),
    op=hvd.Sum,
    compression=hvd.Compression.fp16,
    out=WHOLE // 2,
    back=WHOLE // 2,
)
assert half.dtype == torch.float32 and (half == total).all()
assert (moved(hvd.allreduce, mine(torch.int32), op=hvd.Sum, out=WHOLE, back=WHOLE) == total).all()
average = moved(hvd.allreduce, mine(torch.int32), op=hvd.Average, out=0, back=0)
assert (average == total // size).all()
pair = moved(hvd.grouped_allreduce, [mine(), mine(torch.int32)], out=0, back=0)
assert (pair[0] == total / size).all() and (pair[1] == total // size).all()
assert moved(hvd.allgather, mine(), out=0, back=0).shape == (size * N,)
hvd.shutdown()
