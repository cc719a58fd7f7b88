"""Rank 1 dies in the backward pass of stock DistributedDataParallel, whose buckets are planned."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import herring.torch

dist.init_process_group("herring")
rank = dist.get_rank()
net = torch.nn.Sequential(*[torch.nn.Linear(40, 40) for _ in range(6)])
model = DistributedDataParallel(net, bucket_cap_mb=0.01)
model.register_comm_hook(herring.torch.PlannedBuckets("fp8"), herring.torch.ddp_comm_hook)


def dies(gradient: torch.Tensor) -> None:
    os._exit(7)


for step in range(5):
    net.zero_grad()
    if step == 3 and rank == 1:
        net[2].weight.register_hook(dies)  # the buckets of later layers are on their way
    try:
        model(torch.ones(8, 40)).square().mean().backward()
    except RuntimeError as error:
        assert step == 3 and "rank 1" in str(error), error
        print("heard that rank 1 is lost", flush=True)
        os._exit(0)
raise AssertionError("nobody has died")
