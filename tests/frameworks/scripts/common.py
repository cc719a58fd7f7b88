"""What the scripts share: where results go, and data of a fixed seed."""

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
    """Samples; rank 1 dies when it asks for one more than FATAL of them."""

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
    """[12] and a class of 3, `rows` times."""
    make = torch.Generator().manual_seed(seed)
    inputs = torch.randn(rows, 12, generator=make)
    return Data(list(zip(inputs, inputs[:, :3].argmax(1))))


def network() -> torch.nn.Module:
    torch.manual_seed(4)
    return torch.nn.Sequential(
        torch.nn.Linear(12, 32), torch.nn.BatchNorm1d(32), torch.nn.ReLU(), torch.nn.Linear(32, 3)
    )


def report(model: torch.nn.Module, **more: object) -> None:
    """Writes what this rank has in the end."""
    import herring

    state = {name: one.detach().clone() for name, one in model.state_dict().items()}
    served = herring.is_initialized() and herring.stats()
    torch.save(
        {"state": state, "backend": dist.get_backend(), "served": bool(served), **more},
        OUT / f"rank{dist.get_rank()}.pt",
    )
