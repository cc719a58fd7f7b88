"""Keeps torch.compile out of the backend, whose functions a compiled program calls as they are."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])


def outside_graphs(function: _Function) -> _Function:
    """Returns a function that torch.compile neither traces nor enters when C++ calls it.

    It does the same as `torch.compiler.disable` but does not load the compiler.
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
