"""Keeps torch.compile out of the backend: what a compiled program calls in it is not compiled."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["outside_graphs"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


def outside_graphs(function: _Function) -> _Function:
    """A function that torch.compile neither traces nor looks into when C++ calls it.

    That is `torch.compiler.disable` without loading the compiler.
    """
    disabled: list[Any] = []

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        if not disabled:
            compiler = sys.modules.get("torch._dynamo")
            disable = getattr(compiler, "disable", None)
            if disable is None:
                return function(*arguments, **options)
            disabled.append(disable(function))
        return disabled[0](*arguments, **options)

    return call  # type: ignore[return-value]
