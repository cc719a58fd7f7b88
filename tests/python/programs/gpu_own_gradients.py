"""Rank 1 dies while rank 0 is in a backward pass; no part of the arena comes to `.grad`."""

import copy
import os

import torch

import herring.torch
from gpus import Driver
from support import raises, tell, told

herring.init()
rank = herring.rank()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(300, 300), torch.nn.Linear(300, 200))
alone = copy.deepcopy(model)
views = os.environ["VIEWS"] == "1"
ddp = herring.torch.DistributedDataParallel(model, gradient_as_bucket_view=views, name="m")
inputs = torch.full((4, 300), rank + 1.0)
for _ in range(3):
    ddp(inputs).sum().backward()
kept = [p.grad.clone() for p in model.parameters()]
model.zero_grad()


def join_others(gradient):
    herring.barrier(name="begun")  # the round has begun on rank 0
    tell("begun")
    return gradient


if rank == 1:
    herring.barrier(name="begun")
    told("begun")
    os._exit(0)
model[0].weight.register_hook(join_others)
raises(herring.PeerLostError, "rank 1 (", ddp(inputs).sum().backward)
assert Driver().calls(b"cuMemsetD8Async") > 0
alone(inputs).sum().backward()
for average, ours, own in zip(kept, model.parameters(), alone.parameters(), strict=True):
    assert torch.equal(ours.grad, own.grad)
    assert not torch.equal(own.grad, average)
print("own gradients")
os._exit(0)
