"""Checks how many bytes the calls of FSDP and DTensor copy from the GPU and back."""

import torch
import torch.distributed as dist

import herring
from gpus import Driver

dist.init_process_group("herring", init_method="herring://")
driver, rank, size = Driver(), dist.get_rank(), dist.get_world_size()
N = 50_000


def moved(call, *arguments, out, back, **options):
    before, waits = driver.bytes(), driver.calls(b"cuStreamSynchronize")
    call(*arguments, **options)
    after = driver.bytes()
    found = after[0] - before[0], after[1] - before[1]
    assert found == (4 * out, 4 * back), (call, before, after)
    assert after[2] == 0 and driver.calls(b"cuStreamSynchronize") == waits


mine = torch.full((N,), rank + 1.0)
gathered = torch.zeros(size * N)
moved(dist.all_gather_into_tensor, gathered, mine, out=N, back=size * N)
assert (gathered.view(size, N) == torch.arange(1.0, size + 1)[:, None]).all()
blocks = [torch.zeros(N) for _ in range(size)]
moved(dist.all_gather, blocks, mine, out=N, back=size * N)
assert all((one == r + 1).all() for r, one in enumerate(blocks))
part = torch.zeros(N)
moved(dist.reduce_scatter_tensor, part, gathered * (rank + 1), out=size * N, back=N)
assert (part == (rank + 1) * sum(range(size + 1))).all()
strided = mine.view(100, -1).t()
moved(dist.broadcast, strided, 1, out=N if rank == 1 else 0, back=N)
assert (strided == 2).all() and not strided.is_contiguous()
strided.fill_(1)
moved(dist.all_reduce, strided, out=N, back=N)
assert (strided == size).all()
short = torch.zeros(N + (rank == 1))
try:
    dist.all_gather([torch.zeros(N) for _ in range(size)], short)
except herring.MismatchError as error:
    assert "rank 1 sent" in str(error), error
else:
    raise AssertionError("no error")
moved(dist.gather, mine, blocks if rank == 0 else None, out=0, back=0)
dist.destroy_process_group()
