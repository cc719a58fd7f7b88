"""A torch future that fails for C++ too, such as torch's DistributedDataParallel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from herring.arrays.apart import call_apart
from herring.torch.hook_calls import current_hook_call, inside

__all__ = ["Promise"]


class Promise:
    """Completes a future once, with a value or an error.

    `torch.futures.Future.set_exception` stores the error as the future's value, which only Python
    knows to raise: C++ takes it for tensors and crashes. What a callback raises is an error
    everywhere, so the future that is handed out follows another one.

    Args:
      devices: on which the tensors of the value are; None: on the CPU.

    Attributes:
      future: its `wait` and `value` raise RuntimeError with the error's name and text.
    """

    def __init__(self, devices: Sequence[torch.device] | None = None) -> None:
        self._hook_call = current_hook_call()
        self._inner: torch.futures.Future[Any] = torch.futures.Future(
            devices=list(devices) if devices else None
        )
        self.future: torch.futures.Future[Any] = self._inner.then(_outcome)

    def settle(self, value: Any, error: BaseException | None = None) -> None:
        """The future has a value, a tensor or a list of them, or has failed if there is an error.

        What follows it in Python is called by a thread that nobody else waits for: it may wait for
        other futures, which must get their values.
        """
        call_apart(lambda: self.settle_here(value, error))

    def settle_here(self, value: Any, error: BaseException | None = None) -> None:
        """As `settle`, in this thread, before anything can follow."""
        with inside(self._hook_call):
            self._inner.set_result(value if error is None else error)


def _outcome(inner: torch.futures.Future[Any]) -> Any:
    value = inner.value()
    if isinstance(value, BaseException):
        raise type(value)(*value.args)
    return value
