"""Trains by stock DDP and by FSDP2 over the backend, beside one process alone."""

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

import herring
import herring.torch

dist.init_process_group("herring", init_method="herring://")
rank, size = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(rank % torch.cuda.device_count())
# Many scripts set this, so nothing may take a tensor without a device for one in host memory.
torch.set_default_device("cuda")


def model():
    torch.manual_seed(5)
    layers = [torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64)]
    return torch.nn.Sequential(*layers).double()


def batch(step, of):
    return torch.randn(
        8, 64, generator=torch.Generator("cuda").manual_seed(100 * step + of)
    ).double()


def train(net, ranks, steps=6):
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    for step in range(steps):
        optimizer.zero_grad()
        inputs = torch.cat([batch(step, of) for of in ranks])
        (net(inputs) - inputs).square().mean().backward()
        optimizer.step()
    return net


alone = train(model(), range(size))
ddp = train(torch.nn.parallel.DistributedDataParallel(model()), [rank]).module
for mine, other in zip(ddp.parameters(), alone.parameters()):
    assert torch.allclose(mine, other, atol=1e-9), (mine - other).abs().max()
sharded = model()
for layer in (sharded[0], sharded[2]):
    fully_shard(layer)
train(fully_shard(sharded), [rank])
for mine, other in zip(sharded.parameters(), alone.parameters()):
    assert torch.allclose(mine.full_tensor(), other, atol=1e-9)
views = herring.torch.DistributedDataParallel(model(), gradient_as_bucket_view=True)
train(views, [rank])
for mine, other in zip(views.module.parameters(), alone.parameters()):
    assert torch.allclose(mine, other, atol=1e-9)
views.close()
found = [None] * size
dist.all_gather_object(found, rank)
assert found == list(range(size))
rows = torch.arange(size) if rank == 0 else None
assert int(herring.torch.scatter(rows, 0)) == rank
print(f"rank {rank} is done", flush=True)
dist.destroy_process_group()
