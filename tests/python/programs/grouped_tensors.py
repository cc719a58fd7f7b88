"""Tests grouped collectives with lists of tensors."""

import numpy as np
import torch

import herring
from support import raises

herring.init()
rank, size = herring.rank(), herring.size()

weights = torch.full((4, 3), float(rank), requires_grad=True)
tensors = [
    torch.full((5,), rank, dtype=torch.bfloat16),
    torch.full((2, 2), rank),
    weights.detach(),
    torch.full((70_000,), 1.5 * rank, dtype=torch.bfloat16),
    torch.tensor(float(rank)),
    np.full(3, rank, np.float32),
]
version = weights._version
total = sum(range(size))
found = herring.grouped_allreduce(tensors, "sum")
assert all(a is b for a, b in zip(found, tensors)) and weights._version > version
for tensor, factor in zip(tensors, (1, 1, 1, 1.5, 1, 1)):
    assert (tensor == factor * total).all(), tensor
bits = herring.grouped_allgather([tensors[0], torch.full((rank,), 2, dtype=torch.bfloat16)])
assert bits[0].dtype == np.uint16 and len(bits[0]) == 5 * size and len(bits[1]) == total
assert (torch.from_numpy(bits[1].view(np.int16)).view(torch.bfloat16) == 2).all()
(part,) = herring.grouped_reduce_scatter([torch.ones(2 * size, dtype=torch.bfloat16)], "sum")
assert (torch.from_numpy(part.view(np.int16)).view(torch.bfloat16) == size).all()
mine = [torch.full((3,), rank, dtype=torch.bfloat16), torch.full((3,), rank)]
herring.grouped_broadcast(mine, size - 1)
assert all((t == size - 1).all() for t in mine)
strided = torch.ones(4, 4).t()[1:]
raises(herring.InvalidArgumentError, "array 0 of the list", herring.grouped_allreduce, [strided])
