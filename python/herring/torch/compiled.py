"""Keeps torch.compile, and compiled autograd, out of what exchanges data."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Generator, Iterator
from typing import ParamSpec, TypeVar

from herring.torch.tensors import warn_once

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Item = TypeVar("Item")

_REASON = (
    "herring exchanges data here. For fullgraph=True compile the module and then wrap it: "
    "DistributedDataParallel(torch.compile(module, fullgraph=True))"
)


def untraced(
    function: Callable[Arguments, Result], reason: str = _REASON
) -> Callable[Arguments, Result]:
    """Returns the function, which torch.compile does not trace, nor what it calls.

    torch.compile is not imported for that. A program that does not compile is spared its import.

    Args:
      reason: What torch's error says if the function must be a part of a graph.
    """
    function._torchdynamo_disable = True
    function._torchdynamo_disable_msg = reason

    disabled: Callable[Arguments, Result] | None = None

    @functools.wraps(function)
    def whole(*arguments: Arguments.args, **options: Arguments.kwargs) -> Result:
        nonlocal disabled
        if disabled is None:
            if "torch._dynamo" not in sys.modules:
                return function(*arguments, **options)
            disabled = sys.modules["torch._dynamo"].disable(function, reason=reason)
        return disabled(*arguments, **options)

    return whole


class _Untraced(Iterator[Item]):
    """An iterator whose items torch.compile does not trace."""

    def __init__(self, items: Generator[Item]) -> None:
        self._items = items

    @untraced
    def __next__(self) -> Item:
        return next(self._items)

    @untraced
    def close(self) -> None:
        """Leaves the loop, as for a generator."""
        self._items.close()


def untraced_items(
    function: Callable[Arguments, Generator[Item]],
) -> Callable[Arguments, Iterator[Item]]:
    """Returns the generator function, neither whose calls nor whose items torch.compile traces."""

    @functools.wraps(function)
    def started(*arguments: Arguments.args, **options: Arguments.kwargs) -> Iterator[Item]:
        return _Untraced(function(*arguments, **options))

    return untraced(started)


@contextlib.contextmanager
def uncompiled() -> Iterator[None]:
    """Runs a backward pass as it is, where compiled autograd would replace it.

    Compiled autograd traces a pass once, with the hooks that average, and then runs the trace.
    """
    compiled = sys.modules.get("torch._dynamo.compiled_autograd")
    if compiled is None or not compiled.compiled_autograd_enabled:
        yield
        return
    warn_once(
        "compiled autograd",
        "herring.torch: a backward pass whose gradients are averaged is not compiled by compiled "
        "autograd; set torch._dynamo.config.compiled_autograd = False",
    )
    with compiled._disable():
        yield
