"""Helpers that the cases share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import herring.horovod.torch as hvd

CASES: dict[str, Callable[[], None]] = {}


def case(function: Callable[[], None]) -> Callable[[], None]:
    CASES[function.__name__] = function
    return function


def raises(kind: Any, text: str, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    try:
        call(*arguments, **options)
    except kind as error:
        assert text in str(error), f"{text!r} not in {error}"
        return error
    raise AssertionError(f"{kind} was not raised")


def mlp(seed: int = 1) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))


def loss_of(model: nn.Module, step: int, rank: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * step + rank)
    inputs = torch.randn(4, 8, generator=generator)
    return F.cross_entropy(model(inputs), torch.randint(0, 3, (4,), generator=generator))


def close(actual: nn.Module, expected: nn.Module, tolerance: float = 1e-5) -> None:
    for one, other in zip(actual.parameters(), expected.parameters()):
        assert torch.allclose(one, other, atol=tolerance), (one - other).abs().max()


def same(model: nn.Module) -> None:
    values = [parameter.tolist() for parameter in model.parameters()]
    assert all(one == values for one in hvd.allgather_object(values)), "ranks differ"
