"""Sums tensors of several GPUs in one list."""

import torch
import torch.distributed as dist

from gpus import Driver
from herring.torch import devices

dist.init_process_group("herring", init_method="herring://")
options = dist.AllreduceCoalescedOptions()
for alike, moved in ((True, 28), (False, 0)):
    devices.gpu_of = lambda tensor, alike=alike: 0 if alike or len(tensor) == 3 else 1
    pair, before = [torch.ones(3), torch.ones(4)], Driver().bytes()[0]
    dist.group.WORLD.allreduce_coalesced(pair, options).wait()
    assert all((one == dist.get_world_size()).all() for one in pair)
    assert Driver().bytes()[0] - before == moved, (alike, Driver().bytes(), before)
dist.destroy_process_group()
