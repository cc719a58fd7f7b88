"""Rank 0's tensors lie on a GPU, those of the others in host memory; gathers refuse the mixture."""

import torch
import torch.distributed as dist

import herring.torch
from gpus import Driver
from herring.torch import devices
from support import raises

dist.init_process_group("herring", init_method="herring://")
rank, size = dist.get_rank(), dist.get_world_size()
if rank > 0:
    devices.gpu_of = lambda tensor: None
average = sum(range(1, size + 1)) / size


class Weights(torch.nn.Module):
    """Its gradients are the factor that it is called with."""

    def __init__(self) -> None:
        super().__init__()
        self.large = torch.nn.Parameter(torch.zeros(300_000))
        self.small = torch.nn.Parameter(torch.zeros(7))

    def forward(self, factor: float) -> torch.Tensor:
        """Returns a sum that is linear in the weights."""
        return factor * (self.large.sum() + self.small.sum())


for views in (False, True):
    for wire in (None, "bfloat16"):
        ddp = herring.torch.DistributedDataParallel(
            Weights(), gradient_as_bucket_view=views, wire_dtype=wire
        )
        optimizer = torch.optim.SGD(ddp.parameters(), lr=1.0)
        for step in range(4):
            optimizer.zero_grad()
            ddp(float(rank + 1)).backward()
            optimizer.step()
            for weights in ddp.parameters():
                assert (weights == -(step + 1) * average).all(), (views, wire, step, weights)
        assert ddp._reducer._layout.gpu == (0 if rank == 0 else None)
        assert ddp._reducer._layout.plan.node_stage == "host"
        ddp.close()
weights = Weights()
optimizer = herring.torch.DistributedOptimizer(
    torch.optim.SGD(weights.parameters(), lr=1.0), named_parameters=weights.named_parameters()
)
for step in range(4):
    optimizer.zero_grad()
    weights(float(rank + 1)).backward()
    optimizer.step()
    assert (weights.large == -(step + 1) * average).all(), (step, weights.large)

one = torch.full((1000,), float(rank + 1))
assert (herring.torch.allreduce(one.clone()) == average).all()
assert (herring.torch.broadcast(one.clone(), size - 1) == size).all()
dist.all_reduce(summed := one.clone())
assert (summed == size * average).all()
parts = [torch.zeros(1000) for _ in range(size)]
for call in (
    lambda: dist.all_gather(parts, one),
    lambda: dist.all_gather_into_tensor(torch.zeros(size * 1000), one),
    lambda: dist.reduce_scatter_tensor(torch.zeros(1000), torch.ones(size * 1000)),
):
    raises(herring.MismatchError, "ranks disagree", call)
if rank == 0:
    assert Driver().bytes()[0] > 0
dist.all_reduce(summed)  # The job goes on.
dist.destroy_process_group()
