"""What the cases share: small models and data, comparisons, and the list of cases."""

from __future__ import annotations

import contextlib
import hashlib
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import herring.torch as herring

CASES: dict[str, Any] = {}
GROUP_CASES: dict[str, Any] = {}  # cases for four workers


def case(function):
    CASES[function.__name__] = function
    return function


def group_case(function):
    GROUP_CASES[function.__name__] = function
    return function


def mlp(seed: int = 7, width: int = 32) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(16, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 4)
    )


def batch(step: int, rank: int, rows: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return (
        torch.randn(rows, 16, generator=generator),
        torch.randint(0, 4, (rows,), generator=generator),
    )


def everyones_batch(step: int, ranks: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    parts = [batch(step, rank) for rank in range(herring.size() if ranks is None else ranks)]
    return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])


def close(actual: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    """Asserts that the relative error in the norm is at most `tolerance`."""
    error = (actual.double() - expected.double()).norm() / expected.double().norm().clamp_min(1e-30)
    assert error <= tolerance, f"relative error {error:.3g} > {tolerance:.3g}"


def same_everywhere(tensors, group: herring.Group | None = None) -> None:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(
            tensor.detach().contiguous().view(-1).view(torch.uint8).cpu().numpy().tobytes()
        )
    digests = herring.allgather_object(digest.hexdigest(), group=group)
    assert len(set(digests)) == 1, f"ranks differ: {digests}"


@contextlib.contextmanager
def raises(kind: type[BaseException], *words: str):
    try:
        yield
    except kind as error:
        for word in words:
            assert word in str(error), f"{word!r} not in {error}"
    else:
        raise AssertionError(f"{kind.__name__} was not raised")


def wrapped(wrap: str, model: nn.Module, optimizer: torch.optim.Optimizer):
    """Wraps the model ("ddp") or its optimizer ("optimizer").

    Returns what is called to compute, the optimizer to use, and what is to be closed.
    """
    if wrap == "ddp":
        ddp = herring.DistributedDataParallel(model)
        return ddp, optimizer, ddp
    optimizer = herring.DistributedOptimizer(optimizer)
    return model, optimizer, optimizer


def train(model, optimizer, data, steps: int, *, set_to_none: bool = True) -> None:
    for step in range(steps):
        inputs, labels = data(step)
        optimizer.zero_grad(set_to_none=set_to_none)
        F.cross_entropy(model(inputs), labels).backward()
        optimizer.step()


def mine(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    return batch(step, herring.rank())
