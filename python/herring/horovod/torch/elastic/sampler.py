"""ElasticSampler, which divides what is left of an epoch between the workers of the present job."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sized
from typing import Any

import torch

from herring.horovod.common.basics import rank, size


class ElasticSampler(torch.utils.data.Sampler[int]):
    """Divides the samples of an epoch that have not been processed between the ranks.

    Put it into the `TorchState`, so that it divides the rest anew when workers go or come. Call
    `record_batch` after each batch, and `set_epoch` at the end of each epoch.

    Args:
      dataset: the samples; their number stays the same.
      shuffle: whether each epoch has an order of its own.
      seed: the seed of these orders, the same on all ranks.

    Attributes:
      epoch: the present epoch.
      processed_num: the samples of this epoch that all ranks together have processed.
      remaining_indices: the samples that were left when they were divided, in order.
      num_samples: this rank's share of them.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch, of which nothing has been processed."""
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Notes that each rank has processed a batch.

        Args:
          batch_idx: ignored.
          batch_size: the samples of each rank.
        """
        del batch_idx
        self.processed_num += batch_size * self.num_replicas

    def state_dict(self) -> dict[str, Any]:
        """Returns the epoch, and how much of it has been processed."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on where another sampler was, and divides what is left between the ranks."""
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Divides what is left between the ranks of the present job."""
        self.num_replicas, self.rank = size(), rank()
        order = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(order)
        self.remaining_indices = order[self.processed_num :]
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        # Ranks take turns, so that batches of all ranks are consecutive samples. The first ones are
        # repeated if they do not divide evenly.
        rest = self.remaining_indices
        for place in range(self.rank, self.total_size, self.num_replicas):
            yield rest[place % len(rest)]

    def __len__(self) -> int:
        return self.num_samples
