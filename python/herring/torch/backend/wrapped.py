"""Tensors that hold other tensors, and have no memory of their own.

Before torch 2.14, torch calls a process group in Python without its dispatcher, in which the class
of such a tensor would decide what is done.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from herring.errors import InvalidArgumentError
from herring.torch.tensors import advice_on, holds_tensors

#: The methods that hand on elements as they are, so that what is inside can be moved by itself.
_MOVES = (
    *("broadcast", "allgather", "gather", "scatter", "alltoall"),
    *("send", "recv", "recv_anysource"),
)

_Call = tuple[Sequence[Any], Mapping[str, Any]]


def taken_apart(method: str, arguments: Sequence[Any], options: Mapping[str, Any]) -> list[_Call]:
    """Returns the calls that do with the tensors inside what a call asks for.

    Returns:
      The arguments and options of each call; empty if no tensor holds others.

    Raises:
      InvalidArgumentError: The method computes with the elements, the tensor is a DTensor or
        nested, or the tensors of the call are of different kinds.
    """
    if not any(map(holds_tensors, _tensors((*arguments, *options.values())))):
        return []
    arguments, options = _mapped(_ready, arguments), _mapped(_ready, options)
    every = list(_tensors((*arguments, *options.values())))
    holders = [tensor for tensor in every if holds_tensors(tensor)]
    if not holders:
        return [(arguments, options)]
    first: Any = holders[0]
    names = first.__tensor_flatten__()[0]
    apart = method in _MOVES and not first.is_nested and not hasattr(first, "to_local")
    if not apart or any(type(tensor) is not type(first) for tensor in every):
        raise InvalidArgumentError(f"{method}: {advice_on(first)}")

    def only(name: str) -> Callable[[torch.Tensor], Any]:
        return lambda tensor: getattr(tensor, name)

    return [(_mapped(only(name), arguments), _mapped(only(name), options)) for name in names]


def _tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _mapped(change: Callable[[torch.Tensor], Any], value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, (list, tuple)):
        return type(value)(_mapped(change, one) for one in value)
    if isinstance(value, dict):
        return {name: _mapped(change, one) for name, one in value.items()}
    return value


def _ready(tensor: torch.Tensor) -> torch.Tensor:
    """Waits for what a functional collective has begun, and returns its tensor."""
    functional = sys.modules.get("torch.distributed._functional_collectives")
    kind = getattr(functional, "AsyncCollectiveTensor", ())
    pending: Any = tensor
    return pending.trigger_wait() if isinstance(tensor, kind) else tensor
