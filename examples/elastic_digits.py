"""Trains on handwritten digits, and goes on when workers die or come.

    herring run --elastic -n 3 -- python examples/elastic_digits.py --die 1

Worker 1 kills itself in the middle. The others go on without it, and it comes back.
"""

from __future__ import annotations

import argparse
import os
import signal
import time

import torch
from digits import load_data, make_model
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, TensorDataset

import herring.elastic
import herring.torch

BATCH = 16


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=30, help="passes over the training set")
    parser.add_argument("--die", type=int, default=-1, help="the worker that kills itself once")
    parser.add_argument("--at", type=int, default=100, help="the step in which it does")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(1)  # The workers share this machine's cores.
    images, labels, test_images, test_labels = load_data()
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    data = TensorDataset(images, labels)
    sampler = herring.torch.ElasticSampler(data, BATCH)
    # (1) What training needs to go on: all ranks have it, and workers that come get it.
    state = herring.torch.State(
        model=model, optimizer=optimizer, sampler=sampler, epoch=0, died=False
    )
    me = int(os.environ.get("HERRING_RANK", "0"))

    # (2) Called again whenever workers have gone or come.
    @herring.elastic.run
    def train(state: herring.torch.State) -> float:
        rank, size = herring.rank(), herring.size()
        if rank == 0:
            print(f"{size} workers go on from step {state.steps}", flush=True)
        ddp = herring.torch.DistributedDataParallel(model)
        loader = DataLoader(data, BATCH, sampler=sampler)
        loss = torch.zeros(())
        while state.epoch < arguments.epochs:
            sampler.set_epoch(state.epoch)
            for inputs, targets in loader:
                optimizer.zero_grad()
                loss = F.cross_entropy(ddp(inputs), targets)
                loss.backward()
                if state.steps == arguments.at and not state.died:
                    state.died = True  # The others remember it.
                    if me == arguments.die:
                        os.kill(os.getpid(), signal.SIGKILL)
                optimizer.step()
                time.sleep(0.01)  # This model is small; there should be time to come back.
                state.commit()  # (3) A step is complete. Workers that have come join here.
            state.epoch += 1
        return loss.item()

    loss = train(state)
    if herring.rank() == 0:
        with torch.no_grad():
            right = (model(test_images).argmax(1) == test_labels).float().mean()
        print(
            f"{state.steps} steps, {herring.size()} workers at the end, loss {loss:.4f}, "
            f"test accuracy {right:.4f}"
        )


if __name__ == "__main__":
    main()
