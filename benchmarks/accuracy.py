"""Trains the digits of examples/digits.py in each wire dtype, with and without error feedback.

  herring run -n 4 --nodes 4 -- python benchmarks/accuracy.py
  herring run -n 4 --nodes 4 -- python benchmarks/accuracy.py --seeds 8 --epochs 10

Rank 0 prints a table: the mean over the seeds, and the smallest and largest value, of the loss on
the training set and of the accuracy on the test set. docs/how-to/eight-bits.md shows one.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from torch.nn import functional as F  # noqa: N812

import herring.torch as herring

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import digits

VARIANTS = [
    ("float32", True),
    ("bfloat16", True),
    *[(wire, feedback) for wire in ("fp8", "fp8_e5m2", "int8") for feedback in (True, False)],
]
BATCH = 32  # of each worker
RATE = 5e-3


def trained(
    wire: str, feedback: bool, seed: int, epochs: int, data: tuple[torch.Tensor, ...]
) -> tuple[float, float]:
    """Returns the loss on the training set and the accuracy on the test set."""
    images, labels, test_images, test_labels = data
    rank, size = herring.rank(), herring.size()
    torch.manual_seed(seed)
    model = herring.DistributedDataParallel(
        digits.make_model(), wire_dtype=wire, error_feedback=feedback
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    steps = len(labels) // (BATCH * size)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps * epochs)
    shuffle = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        order = torch.randperm(len(labels), generator=shuffle)
        for batch in order[: steps * BATCH * size].split(BATCH * size):
            mine = batch[rank::size]
            optimizer.zero_grad()
            F.cross_entropy(model(images[mine]), labels[mine]).backward()
            optimizer.step()
            schedule.step()
    model.close()
    with torch.no_grad():
        loss = F.cross_entropy(model.module(images), labels).item()
        right = (model.module(test_images).argmax(1) == test_labels).float().mean().item()
    return loss, right


def spread(values: list[float], digits: int, factor: float = 1.0) -> str:
    """Returns the mean of some values and their range."""
    low, high = min(values) * factor, max(values) * factor
    mean = sum(values) / len(values) * factor
    return f"{mean:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def main() -> None:
    """Trains every variant with every seed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=4, help="number of seeds (default: 4)")
    parser.add_argument("--epochs", type=int, default=40, help="passes over the data (default: 40)")
    options = parser.parse_args()
    herring.init()
    torch.set_num_threads(1)
    first = herring.rank() == 0
    data = herring.broadcast_object(digits.load_data() if first else None)
    if first:
        print("| wire dtype | error feedback | training loss | test accuracy, % |")
        print("|---|---|---|---|", flush=True)
    for wire, feedback in VARIANTS:
        found = [
            trained(wire, feedback, seed, options.epochs, data) for seed in range(options.seeds)
        ]
        losses, rights = zip(*found)
        told = "" if not wire.startswith(("fp8", "int8")) else "yes" if feedback else "no"
        if first:
            row = f"| {wire} | {told} | {spread([*losses], 4)} | {spread([*rights], 2, 100)} |"
            print(row, flush=True)
    herring.shutdown()


if __name__ == "__main__":
    main()
