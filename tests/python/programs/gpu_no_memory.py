"""Rank 1's GPU has no memory for the gradients: all ranks refuse the wrapper, and go on."""

import torch

import herring.torch
from support import raises

herring.init()
rank, size = herring.rank(), herring.size()
model = torch.nn.Linear(4, 3)
empty = torch.empty


def lacking(*shape, dtype=None, **options):
    """Fails as torch does on a full GPU. The stand-in's GPU has the memory of the host."""
    if dtype is torch.uint8:
        raise torch.OutOfMemoryError("CUDA out of memory")
    return empty(*shape, dtype=dtype, **options)


for turn in range(2):
    if rank == 1:
        torch.empty = lacking
    kind = torch.OutOfMemoryError if rank == 1 else herring.InvalidArgumentError
    words = "CUDA out of memory" if rank == 1 else "refused by rank 1"
    raises(kind, words, herring.torch.DistributedDataParallel, model, name=f"m{turn}")
    torch.empty = empty
    assert herring.allreduce(torch.ones(2), "sum").tolist() == [size, size]
ddp = herring.torch.DistributedDataParallel(model, name="m")
ddp(torch.ones(1, 4)).sum().backward()
assert all(p.grad is not None for p in model.parameters())
ddp.close()
herring.shutdown()
