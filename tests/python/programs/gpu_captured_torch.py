"""Uses works and handles of torch inside the capture of a CUDA graph; pretends the capture."""

import torch
import torch.distributed as dist

import herring.torch
from herring.torch import tensors
from support import raises

dist.init_process_group("herring", init_method="herring://")
rank = dist.get_rank()


def inside(*calls):
    """Makes calls inside a capture while the other rank has not called yet."""
    if rank == 0:
        tensors.is_capturing = lambda tensor: True
        for call in calls:
            raises(herring.InvalidArgumentError, "is being captured for a CUDA graph", call)
        tensors.is_capturing = lambda tensor: False
    herring.barrier()


def begun(start):
    """Starts an operation, on rank 1 only after rank 0 was in its capture."""
    if rank == 0:
        work = start()
        inside(work.wait, work.is_completed, work.get_future, work.result, work.exception)
        return work
    inside()
    return start()


one = torch.ones(1000)
begun(lambda: dist.all_reduce(one, async_op=True)).wait()
assert (one == 2).all(), one
parts = [torch.zeros(10), torch.zeros(10)]
begun(lambda: dist.all_gather(parts, torch.full((10,), float(rank)), async_op=True)).wait()
assert [part[0].item() for part in parts] == [0, 1]
dist.destroy_process_group()
