"""Rank 0 runs out of data first, and the other rank learns so."""

import sys

import torch

import herring
from herring.torch import DistributedDataParallel

herring.init()
torch.manual_seed(0)
layers = [torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64)][: 2 if sys.argv[1] == "buffers" else 1]
net = DistributedDataParallel(torch.nn.Sequential(*layers))
steps = 0
try:
    for _step in range(3 if herring.rank() == 0 else 6):
        net(torch.randn(8, 64)).sum().backward()
        steps += 1
except herring.PeerLostError as error:
    assert "rank 0 (" in str(error) and "left the job" in str(error), error
    assert "use join() if ranks have different" in str(error), error
    print("told", flush=True)
