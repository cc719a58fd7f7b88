"""What the scripts share: the folder of results, data with a fixed seed, and a network."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

OUT = Path(os.environ["OUT"])


class Data(torch.utils.data.Dataset):
    """A data set whose use kills rank 1 when rank 1 asks for more than FATAL samples."""

    def __init__(self, items: Sequence[Any]) -> None:
        self.items = items
        self.left = int(os.environ.get("FATAL", 1 << 30))

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        self.left -= 1
        if self.left < 0 and dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.items[index]


def samples(rows: int = 46, seed: int = 0) -> Data:
    """Returns `rows` samples: 12 float32 inputs and one of 3 classes."""
    make = torch.Generator().manual_seed(seed)
    inputs = torch.randn(rows, 12, generator=make)
    return Data(list(zip(inputs, inputs[:, :3].argmax(1))))


def network() -> torch.nn.Module:
    torch.manual_seed(4)
    return torch.nn.Sequential(
        torch.nn.Linear(12, 32), torch.nn.BatchNorm1d(32), torch.nn.ReLU(), torch.nn.Linear(32, 3)
    )


def report(model: torch.nn.Module, **more: object) -> None:
    """Writes this rank's final state, and `more`, to a file."""
    import herring

    state = {name: one.detach().clone() for name, one in model.state_dict().items()}
    served = herring.is_initialized() and herring.stats()
    torch.save(
        {"state": state, "backend": dist.get_backend(), "served": bool(served), **more},
        OUT / f"rank{dist.get_rank()}.pt",
    )
