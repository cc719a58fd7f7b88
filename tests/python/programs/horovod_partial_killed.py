"""Rank 1 dies while it trains in partial rounds; the others go on without it, and end alike."""

import os
import signal
import time

import torch

import herring
import herring.horovod.torch as hvd
from support import stay_until_all_know

hvd.init()
rank = hvd.rank()
model = torch.nn.Linear(40, 3, bias=False)
torch.nn.init.zeros_(model.weight)
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=1.0),
    model.named_parameters(),
    op=hvd.Sum,
    sync=herring.Quorum(2),
)
for step in range(20):
    optimizer.zero_grad()
    (model(torch.ones(1, 40)) * 100.0**rank).sum().backward()
    if rank == 1 and step == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.001 * rank)
    optimizer.step()
optimizer.flush()
((lost, counted, _),) = optimizer.statistics.lost
assert lost == 1 and counted <= 7, optimizer.statistics.lost
expected = -(20 + 20 * 100.0**2 + counted * 100.0)
assert (model.weight == expected).all(), (model.weight[0, 0].item(), expected)
try:
    hvd.allreduce(torch.ones(3))
except hvd.HorovodInternalError as error:
    assert "rank 1" in str(error), error
    print(f"survivor {rank} has {model.weight[0, 0].item()}")
stay_until_all_know(rank, [0, 2])
