"""Numbers of the collectives that a communication hook starts, whenever it starts them."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

from herring.arrays.names import next_name

__all__ = ["HookCall", "current_hook_call", "inside", "ordered_comm_hook"]

_here = threading.local()


class HookCall:
    """One call of a hook, with what follows the futures that it has made."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._names: dict[Hashable, tuple[str, itertools.count[int]]] = {}

    def next_name(self, among: Hashable) -> str:
        """A name for its next collective, the same on every rank; `among`: as of `next_name`."""
        with self._lock:
            if among not in self._names:
                self._names[among] = next_name("torch.hook", among), itertools.count()
            name, numbers = self._names[among]
            return f"{name}.{next(numbers)}"


def current_hook_call() -> HookCall | None:
    """The call of a hook that this thread is in; None: it is in none."""
    return getattr(_here, "call", None)


@contextmanager
def inside(call: HookCall | None) -> Iterator[None]:
    """In it, collectives are those of this call; None: of the program."""
    before = current_hook_call()
    _here.call = call
    try:
        yield
    finally:
        _here.call = before


def ordered_comm_hook(hook: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Makes a communication hook safe that starts collectives when others are complete.

    torch's PowerSGD hook does so, while the backward pass goes on and starts those of the next
    buckets: without this the order of calls differs from rank to rank. With it each call of the
    hook has an order of its own::

        hook = herring.torch.ordered_comm_hook(powerSGD_hook.powerSGD_hook)
        model.register_comm_hook(state, hook)

    The first collective of each call must be started by the hook itself, and later ones by what
    follows its future (``future.then``), one after the other.

    Args:
      hook: called with a state and a bucket; returns a future.

    Returns:
      The hook for ``register_comm_hook`` of a model on the backend "herring".
    """

    @functools.wraps(hook)
    def call(state: Any, bucket: Any) -> Any:
        with inside(HookCall()):
            return hook(state, bucket)

    return call
