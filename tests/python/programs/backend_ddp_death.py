"""A rank dies between the forward and the backward pass of torch's own DDP."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import herring
import herring.torch
from support import meet_outside, raises

dist.init_process_group("herring", init_method="herring://")
model = DistributedDataParallel(torch.nn.Linear(300, 300))
if os.environ["HOOK"]:
    model.register_comm_hook(None, herring.torch.ddp_comm_hook)
model(torch.ones(2, 300)).sum().backward()
loss = model(torch.ones(2, 300)).sum()
meet_outside(dist.get_rank(), [0, 1])
if dist.get_rank() == 1:
    os._exit(0)
raises(RuntimeError, "rank 1", loss.backward)  # here C++ code reads the future
print("survived", flush=True)
