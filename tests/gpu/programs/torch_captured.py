"""Calls and waits inside the capture of a CUDA graph are refused, and the graph is right."""

import torch
import torch.distributed as dist

import herring.torch
from support import raises

dist.init_process_group("herring", init_method="herring://")
rank, size = herring.rank(), herring.size()
torch.cuda.set_device(rank % torch.cuda.device_count())
first, second, other, counter = torch.ones(4, 1000, device="cuda").unbind()
work = dist.all_reduce(first, async_op=True)
handle = herring.torch.allreduce_async(second, "sum", name="second")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    for call in (
        work.wait,
        work.is_completed,
        handle.wait,
        lambda: herring.torch.allreduce(other, name="refused"),
        lambda: herring.torch.allgather(other, name="refused too"),
    ):
        raises(herring.InvalidArgumentError, "is being captured for a CUDA graph", call)
    counter.add_(1)
graph.replay()
work.wait()
handle.wait()
assert (counter == 2).all() and (first == size).all() and (second == size).all()
dist.destroy_process_group()
