"""Names the collectives that a communication hook starts, at whatever time it starts them."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

from herring.arrays.names import next_name

_here = threading.local()


class HookCall:
    """One call of a hook, including the callbacks of the futures that it makes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._names: dict[Hashable, tuple[str, itertools.count[int]]] = {}

    def next_name(self, among: Hashable) -> str:
        """Returns a name for the next collective among these ranks (None: all), the same on all."""
        with self._lock:
            if among not in self._names:
                self._names[among] = next_name("torch.hook", among), itertools.count()
            name, numbers = self._names[among]
            return f"{name}.{next(numbers)}"


def current_hook_call() -> HookCall | None:
    """Returns the hook call that this thread is in, or None."""
    return getattr(_here, "call", None)


@contextmanager
def inside(call: HookCall | None) -> Iterator[None]:
    """Makes collectives inside the block belong to `call`; None means the program itself."""
    before = current_hook_call()
    _here.call = call
    try:
        yield
    finally:
        _here.call = before


def ordered_comm_hook(hook: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Makes a communication hook safe that starts collectives after others are complete.

    torch's PowerSGD hook does this while the backward pass starts the hooks of further buckets, so
    without this wrapper ranks would start collectives in different orders. With the wrapper each
    call of the hook has an order of its own::

        hook = herring.torch.ordered_comm_hook(powerSGD_hook.powerSGD_hook)
        model.register_comm_hook(state, hook)

    The hook itself must start the first collective of each call. Callbacks of its future
    (``future.then``) must start the later collectives, one after the other.

    Args:
      hook: A function of a state and a bucket that returns a future.

    Returns:
      The hook for ``register_comm_hook`` of a model on the backend "herring".
    """

    @functools.wraps(hook)
    def call(state: Any, bucket: Any) -> Any:
        with inside(HookCall()):
            return hook(state, bucket)

    return call
