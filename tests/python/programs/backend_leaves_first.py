"""Rank 0 destroys its groups while the others go on in one of theirs until it has left."""

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

from herring.torch.backend import base
from support import is_leaving, tell_when

base._GOODBYE = 0.5
dist.init_process_group("herring")
others = dist.new_group([1, 2])
dist.barrier()
if dist.get_rank() == 0:
    tell_when(is_leaving, "left")
else:
    left = Path(os.environ["FOLDER"], "left")
    more = torch.ones(1)
    while more.item() > 0:
        time.sleep(0.02)  # leaves the processors to others
        more = torch.tensor([float(not left.exists())])
        dist.all_reduce(more, op=dist.ReduceOp.MIN, group=others)
dist.destroy_process_group()
print("left", flush=True)
