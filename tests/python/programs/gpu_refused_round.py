"""Lets rank 1 refuse a round; all ranks get the error, and the next step is right."""

import torch

import herring.torch
from support import raises

herring.init()
rank = herring.rank()
model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))
other = torch.nn.Linear(2, 1)
ddp = herring.torch.DistributedDataParallel(model, name="m")
behind = herring.torch.DistributedDataParallel(other, name="behind")


def step():
    model.zero_grad()
    other.zero_grad()
    behind(ddp(torch.ones(1, 4))).sum().backward()


for _ in range(2):
    step()
layout = ddp._reducer._layout
there = layout._devices[layout.names.index("1.weight")]
if rank == 1:
    # This pretends that the parameter came from another GPU, because there is only one device here.
    layout._devices[layout.names.index("1.weight")] = torch.device("cuda", 1)
why = "parameter '1.weight' was on cuda:1 when 'm' was made and is on cpu now; move the model"
raises(
    herring.InvalidArgumentError, why if rank == 1 else "m round 3: rank 1 refused it: " + why, step
)
assert all(p.grad is None for p in model.parameters())
layout._devices[layout.names.index("1.weight")] = there
step()
assert all(p.grad is not None for p in (*model.parameters(), *other.parameters()))
ddp.close()
behind.close()
herring.shutdown()
