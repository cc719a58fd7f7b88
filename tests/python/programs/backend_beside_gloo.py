"""Forms a group with backend `herring` in a job whose default group uses Gloo."""

import os

import torch
import torch.distributed as dist

import herring
import herring.torch
from support import raises

place = {"rank": int(os.environ["HERRING_RANK"]), "world_size": 2}
dist.init_process_group("gloo", init_method="file://" + os.environ["FOLDER"] + "/s", **place)
raises(
    herring.ConfigurationError,
    "call herring.init() on every rank",
    dist.new_group,
    backend="herring",
)
dist.barrier()
herring.init()
group = dist.new_group(backend="herring")
tensor = torch.ones(3)
dist.all_reduce(tensor, group=group)
assert tensor.tolist() == [2.0] * 3
dist.barrier()
print("well", flush=True)
