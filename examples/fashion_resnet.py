"""Trains a ResNet-14 on Fashion-MNIST, over Herring or over Gloo, to compare the two.

docs/tutorials/fashion.md goes through this script. The data is Debian's package
dataset-fashion-mnist.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import hashlib
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F  # noqa: N812

import herring.elastic
import herring.torch

EPILOG = """\
examples:
  herring run -n 2 -- python examples/fashion_resnet.py
      two workers on this machine
  herring lab run --workers 2 --servers 2 --rate 100mbit -- python examples/fashion_resnet.py
      two workers and two servers on emulated hosts with links of 100 Mbit/s (as root)
  herring lab run --workers 2 --rate 100mbit -- python examples/fashion_resnet.py --gloo
      the same workers over torch's DistributedDataParallel and Gloo
"""
DATA = Path("/usr/share/datasets/fashion-mnist")
FILES = {"train": "train", "test": "t10k"}
MISSING = """\
There is no {path}. On Debian, install the data: apt-get install dataset-fashion-mnist.
Elsewhere, put the four files *-ubyte.gz of https://github.com/zalandoresearch/fashion-mnist
into a folder, and name it with --data."""


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Trains a ResNet-14 on Fashion-MNIST with several workers.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--gloo", action="store_true", help="torch's DistributedDataParallel over Gloo instead")
    add("--steps", type=int, default=200, help="steps to train (default: 200)")
    add("--batch", type=int, default=128, help="images in a step, of all workers (default: 128)")
    add("--lr", type=float, default=0.2, help="peak learning rate of SGD (default: 0.2)")
    add("--every", type=int, default=25, help="steps between two tests (default: 25)")
    add("--data", type=Path, default=DATA, help=f"folder of the data (default: {DATA})")
    add("--curve", type=Path, help="CSV file to which rank 0 writes steps, seconds and accuracies")
    return parser.parse_args()


def load(folder: Path, part: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns images ([n, 1, 28, 28] uint8) and labels ([n] int64) of "train" or of "test".

    Raises:
      SystemExit: the data is not there.
    """
    contents = []
    for kind, header in (("images-idx3", 16), ("labels-idx1", 8)):  # bytes before the numbers
        path = folder / f"{FILES[part]}-{kind}-ubyte.gz"
        if not path.exists():
            raise SystemExit(MISSING.format(path=path))
        contents.append(np.frombuffer(bytearray(gzip.decompress(path.read_bytes()))[header:], "u1"))
    images, labels = map(torch.from_numpy, contents)
    return images.view(-1, 1, 28, 28), labels.long()


class Block(nn.Module):
    """Adds two convolutions of 3 x 3 to their input."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or channels_in != channels:
            self.shortcut = nn.Conv2d(channels_in, channels, 1, stride, bias=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Returns the block's outputs, [n, channels, h / stride, w / stride]."""
        inner = F.relu(self.first_norm(self.first(inputs)))
        return F.relu(self.shortcut(inputs) + self.second_norm(self.second(inner)))


def resnet14() -> nn.Sequential:
    """Returns a ResNet of 14 layers for images of one channel, with 174,778 parameters."""
    layers = [nn.Conv2d(1, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    for before, channels in ((16, 16), (16, 32), (32, 64)):
        layers.append(Block(before, channels, 1 if before == channels else 2))
        layers.append(Block(channels, channels, 1))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


class Training:
    """What is the same over Herring and over Gloo: the data, a step, and a test."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.images, self.labels = load(arguments.data, "train")
        self.test_images, self.test_labels = load(arguments.data, "test")
        torch.manual_seed(0)  # All ranks begin with the same parameters.
        self.model = resnet14()
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), arguments.lr, momentum=0.9, nesterov=True, weight_decay=5e-4
        )
        self.curve: list[tuple[int, float, float]] = []

    def step(self, ddp: nn.Module, number: int, rank: int, size: int) -> float:
        """Makes a step with this rank's part of the batch, and returns its seconds.

        All ranks choose the same images for the batch. So it stays the same batch if the number of
        ranks changes.
        """
        begin = time.perf_counter()
        rate = self.arguments.lr * min((number + 1) / 100, 1 - number / self.arguments.steps)
        self.optimizer.param_groups[0]["lr"] = rate
        chosen = torch.randint(
            len(self.images),
            (self.arguments.batch,),
            generator=torch.Generator().manual_seed(number),
        )[rank::size]
        self.optimizer.zero_grad()
        outputs = ddp(normalized(self.images[chosen]))
        F.cross_entropy(outputs, self.labels[chosen]).backward()
        self.optimizer.step()
        return time.perf_counter() - begin

    def right(self, rank: int, size: int) -> torch.Tensor:
        """Returns how many images of this rank's part of the test set the model knows."""
        self.model.eval()
        with torch.no_grad():
            parts = zip(
                self.test_images[rank::size].split(500),
                self.test_labels[rank::size].split(500),
                strict=True,
            )
            right = sum((self.model(normalized(x)).argmax(1) == y).sum() for x, y in parts)
        self.model.train()
        return torch.as_tensor(right)

    def tell(self, rank: int, number: int, seconds: float, right: torch.Tensor) -> None:
        """Prints and keeps the accuracy after a step, on rank 0."""
        accuracy = right.item() / len(self.test_labels)
        self.curve.append((number, seconds, accuracy))
        if rank == 0:
            print(f"step {number}: test accuracy {accuracy:.4f} after {seconds:.1f} s", flush=True)

    def end(self, rank: int, size: int) -> None:
        """Prints a hash of the parameters, and writes the curve, on rank 0."""
        if rank != 0:
            return
        digest = hashlib.sha256()
        for parameter in self.model.parameters():
            digest.update(parameter.detach().numpy().tobytes())
        print(f"the end, workers: {size}, parameters: {digest.hexdigest()[:12]}", flush=True)
        if self.arguments.curve:
            with self.arguments.curve.open("w", encoding="utf-8", newline="") as file:
                csv.writer(file).writerows([("step", "seconds", "accuracy"), *self.curve])


def normalized(images: torch.Tensor) -> torch.Tensor:
    """Returns images as float32 with the mean 0 and the standard deviation 1 of the data."""
    return (images.float() / 255 - 0.286) / 0.353


def over_gloo(training: Training) -> None:
    """Trains with torch's own wrapper."""
    steps, every = training.arguments.steps, training.arguments.every
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    ddp = nn.parallel.DistributedDataParallel(training.model)
    seconds = 0.0
    for number in range(1, steps + 1):
        seconds += training.step(ddp, number - 1, rank, size)
        if number % every == 0:
            right = training.right(rank, size)
            dist.all_reduce(right)
            training.tell(rank, number, seconds, right)
    training.end(rank, size)
    # Gloo's thread may still hold tensors of the last average, and frees them under Python's lock.
    # A process group that ended with the wrapper would wait for that thread, and hold the lock.
    dist.barrier()
    del ddp
    dist.destroy_process_group()


def over_herring(training: Training) -> None:
    """Trains with Herring's wrapper, and goes on when workers die or come (with --elastic)."""
    steps, every = training.arguments.steps, training.arguments.every
    # (1) What training needs to go on: all ranks have it, and workers that come get it.
    state = herring.torch.State(model=training.model, optimizer=training.optimizer, seconds=0.0)

    # (2) Joins the job. Called again whenever workers have gone or come.
    @herring.elastic.run
    def train(state: herring.torch.State) -> None:
        rank, size = herring.rank(), herring.size()
        if rank == 0:
            print(f"step {state.steps}: training begins, workers: {size}", flush=True)
        ddp = herring.torch.DistributedDataParallel(training.model)
        while state.steps < steps:
            state.seconds += training.step(ddp, state.steps, rank, size)
            if state.steps % every == 0:
                right = herring.torch.allreduce(training.right(rank, size), "sum")
                training.tell(rank, state.steps, state.seconds, right)
            state.commit()  # (3) A step is complete. Workers that have come join here.

    train(state)
    training.end(herring.rank(), herring.size())
    herring.shutdown()


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(1)  # The workers share this machine's cores.
    training = Training(arguments)
    (over_gloo if arguments.gloo else over_herring)(training)


if __name__ == "__main__":
    main()
