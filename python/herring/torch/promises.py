"""A torch future that also fails correctly in C++, such as torch's DistributedDataParallel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from herring.arrays.apart import call_apart
from herring.torch.hook_calls import current_hook_call, inside


class Promise:
    """Completes a future once, with a value or an error.

    `torch.futures.Future.set_exception` stores the error as the future's value, and only Python
    knows how to raise it. C++ takes the value for tensors and crashes. An exception in a callback
    is an error everywhere, so the public future is made by a callback of an inner future.

    Args:
      devices: The devices on which the value's tensors are; None means the CPU.
    """

    def __init__(self, devices: Sequence[torch.device] | None = None) -> None:
        self._hook_call = current_hook_call()
        self._inner: torch.futures.Future[Any] = torch.futures.Future(
            devices=list(devices) if devices else None
        )
        # The public future. On failure its `wait` and `value` raise a RuntimeError with the error's
        # name and text.
        self.future: torch.futures.Future[Any] = self._inner.then(_outcome)

    def settle(self, value: Any, error: BaseException | None = None) -> None:
        """Completes the future with a value, or with an error if there is one.

        A separate thread calls the future's Python callbacks, because they may wait for other
        futures that must still get their values.
        """
        call_apart(lambda: self.settle_here(value, error))

    def settle_here(self, value: Any, error: BaseException | None = None) -> None:
        """Completes the future in this thread; callbacks must not have been added before."""
        with inside(self._hook_call):
            self._inner.set_result(value if error is None else error)


def _outcome(inner: torch.futures.Future[Any]) -> Any:
    value = inner.value()
    if isinstance(value, BaseException):
        raise type(value)(*value.args)
    return value
