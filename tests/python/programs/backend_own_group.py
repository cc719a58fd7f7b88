"""Calls init_process_group() under `python -m herring.torch`, which already has a group."""

import os

import torch
import torch.distributed as dist
from torch.distributed import init_process_group


def total(tensor, **options):
    dist.all_reduce(tensor, **options)
    return tensor.item()


rank = int(os.environ["RANK"])
for arguments in ({"rank": 1 - rank}, {"world_size": 7}):
    try:
        init_process_group("gloo", **arguments)
    except RuntimeError as error:
        assert "python -m herring.torch" in str(error), error
    else:
        raise AssertionError(arguments)
arguments = eval(os.environ["ARGUMENTS"])
init_process_group(*arguments)
assert dist.get_backend() == "herring" and dist.get_world_size() == 2
assert total(torch.ones(1)) == 2
try:
    init_process_group(*arguments)
except ValueError as error:
    assert "twice" in str(error), error
else:
    raise AssertionError("a second group")
dist.destroy_process_group()
url = "file://" + os.environ["FOLDER"] + "/store"
dist.init_process_group("gloo", init_method=url, rank=rank, world_size=2)
assert dist.get_backend() == "herring"
print(f"total {total(torch.ones(1)):g}", flush=True)
