"""Helpers that the cases share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

CASES: dict[str, Callable[[], None]] = {}
_gloo: list[Any] = []


def case(function: Callable[[], None]) -> Callable[[], None]:
    """Registers a case under its name."""
    CASES[function.__name__] = function
    return function


def gloo() -> Any:
    """Returns a group of all ranks that gloo serves."""
    if not _gloo:
        _gloo.append(dist.new_group(backend="gloo"))
    return _gloo[0]


def uses_gloo() -> bool:
    """Returns whether gloo was used: its threads keep a forked child from exiting."""
    return bool(_gloo)


def forget() -> None:
    """Drops the gloo group before process groups are created again."""
    _gloo.clear()


def same(found: torch.Tensor, wanted: torch.Tensor) -> None:
    assert found.dtype == wanted.dtype and found.shape == wanted.shape, (found, wanted)
    if found.is_sparse:
        found, wanted = found.to_dense(), wanted.to_dense()
    assert torch.equal(found, wanted), (found, wanted)


def raises(kind: Any, text: str, call: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    try:
        call(*arguments, **options)
    except kind as error:
        assert text in str(error), str(error)
    else:
        raise AssertionError(f"no {kind} with {text!r}")
