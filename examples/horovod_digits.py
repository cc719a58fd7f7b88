"""Trains a small network on handwritten digits with a script that was written for Horovod.

    herring run -n 4 --horovod -- python examples/horovod_digits.py

The script contains ``import horovod.torch``, but Horovod need not be installed: with --horovod,
Herring takes the place of Horovod (docs/horovod.md).
"""

from __future__ import annotations

import argparse
import json

import horovod.torch as hvd
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data.distributed import DistributedSampler


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains a small network on handwritten digits.")
    parser.add_argument("--epochs", type=int, default=20, help="passes over the training set")
    parser.add_argument("--batch", type=int, default=32, help="samples per worker and step")
    parser.add_argument("--lr", type=float, default=0.05, help="learning rate of one worker")
    parser.add_argument("--fp16-allreduce", action="store_true", help="send gradients in 16 bits")
    options = parser.parse_args()

    hvd.init()
    torch.manual_seed(1)
    digits = load_digits()
    images = torch.from_numpy(digits.images).float().flatten(1) / 16
    labels = torch.from_numpy(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    train, test = order[600:], order[:600]
    data = torch.utils.data.TensorDataset(images[train], labels[train])
    sampler: DistributedSampler[torch.Tensor] = DistributedSampler(
        data, num_replicas=hvd.size(), rank=hvd.rank()
    )
    loader = torch.utils.data.DataLoader(data, batch_size=options.batch, sampler=sampler)

    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr * hvd.size(), momentum=0.9)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if options.fp16_allreduce else hvd.Compression.none,
    )

    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()

    mine = test[hvd.rank() :: hvd.size()]
    right = (model(images[mine]).argmax(1) == labels[mine]).sum()
    accuracy = hvd.allreduce(right, name="right", op=hvd.Sum).item() / len(test)
    if hvd.rank() == 0:
        print(json.dumps({"workers": hvd.size(), "loss": loss.item(), "accuracy": accuracy}))


if __name__ == "__main__":
    main()
