"""Shows Herring's work as ranges in torch.profiler, such as ``herring::allreduce 'loss'``.

Without a profiler each piece of work costs one question whether there is one.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import torch
from torch.autograd.profiler import record_function

from herring.arrays.calls import named

_NOTHING: AbstractContextManager[Any] = contextlib.nullcontext()
_enabled: Callable[[], bool] = torch.autograd._profiler_enabled  # type: ignore[attr-defined]

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Item = TypeVar("_Item")


def profiling() -> bool:
    """Returns whether a profiler records what this thread does."""
    return _enabled()


def work_range(kind: str, name: str) -> AbstractContextManager[Any]:
    """Returns a context that is a range in the profile, if a profiler records this thread."""
    if not _enabled():
        return _NOTHING
    return record_function(f"herring::{kind} '{name}'")


def shown(kind: str) -> Callable[[_Function], _Function]:
    """Makes the calls of a collective ranges in the profile.

    Args:
      kind: The collective. The function has the options ``name`` and ``group``, and calls without
        a name have the next name of this kind.
    """

    def wrapped(function: _Function) -> _Function:
        @functools.wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            if not _enabled():
                return function(*arguments, **options)
            options["name"] = named(options.get("name"), kind, options.get("group"))
            with record_function(f"herring::{kind} '{options['name']}'"):
                return function(*arguments, **options)

        return call  # type: ignore[return-value]

    return wrapped


def each_shown(items: Iterable[_Item], kind: str, name: str) -> Iterator[_Item]:
    """Yields items; the making of each is a range in the profile."""
    iterator = iter(items)
    while True:
        with work_range(kind, name):
            try:
                item = next(iterator)
            except StopIteration:
                return
        yield item
