"""Averages divide by the ranks that have not joined, if all ranks ask for that."""

import torch

import herring
import herring.horovod.torch as hvd
from support import raises

hvd.init(joined_as_zeros=False)
rank = hvd.rank()
weight = torch.nn.Parameter(torch.zeros(1))
optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0))
for _ in range(1 + rank):
    optimizer.zero_grad()
    (5.0 * weight).sum().backward()
    optimizer.step()
    assert weight.grad.item() == 5
    assert hvd.allreduce(torch.ones(300_000)).eq(1).all()
    assert hvd.allreduce(torch.tensor([7])).item() == 7
assert hvd.join() == hvd.size() - 1
hvd.shutdown()

raises(herring.MismatchError, "joined_as_zeros of init()", hvd.init, joined_as_zeros=rank > 0)
