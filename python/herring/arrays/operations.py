"""Starts operations in the core, and the handles of operations under way."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from herring import _core
from herring.arrays.arguments import Timeout, function_of, options_of, seconds_of
from herring.arrays.calls import CallOptions
from herring.arrays.devices import check_not_capturing, take_back
from herring.arrays.groups import scope_of
from herring.arrays.handles import DoneCallbacks, call_later
from herring.arrays.runtime import job
from herring.errors import HerringError

__all__ = ["Handle", "note_write", "submit"]

_IN_PLACE = ("allreduce", "broadcast")


class Handle:
    """An operation under way, which keeps its array alive until it is complete.

    The array is kept even if the handle is dropped.
    """

    def __init__(self, operation: _core.Operation, array: Any) -> None:
        self._operation = operation
        self._array = array
        self._callbacks: DoneCallbacks | None = None

    def done(self) -> bool:
        """Returns whether `wait` would return or raise at once."""
        return self._operation.done()

    def wait(self, timeout: Timeout = None) -> Any:
        """Waits for the result and returns the array.

        Args:
          timeout: Seconds to wait here, or a text such as "5s". The operation goes on after this
            time. None means to wait until the operation's deadline.

        Returns:
          The array that was passed to the operation.

        Raises:
          TimeoutError: The operation was not complete in time. If its deadline has passed, the
            message names the missing ranks.
          InvalidArgumentError: A CUDA graph is being captured; the operation goes on.
          HerringError: The operation failed; the array's content is undefined.
        """
        seconds = seconds_of(timeout)
        if self._operation.on_device:
            check_not_capturing(self._operation, self._array)
        self._operation.wait(seconds)
        if self._operation.comes_back:
            take_back(self._operation, self._array, seconds)
        note_write(self._array)
        return self._array

    def exception(self, timeout: Timeout = None) -> HerringError | None:
        """Waits for the end of the operation and returns its error; None means success.

        Args:
          timeout: Seconds to wait here, or a text such as "5s"; None means to wait until the
            operation's deadline.

        Raises:
          TimeoutError: The operation was not complete in time.
        """
        try:
            self.wait(timeout)
        except HerringError:
            if not self.done():
                raise
        try:
            self.wait()
        except HerringError as error:
            return error
        return None

    def add_done_callback(self, fn: Callable[[Handle], object]) -> None:
        """Calls `fn` with this handle, once, when the operation is complete or has failed.

        If the operation has already ended and no earlier callback of this handle is pending, `fn`
        is called at once in this thread. Otherwise the job's callback thread calls the callbacks in
        the order in which they were added. A callback may start other operations and wait for them;
        callbacks of other handles are called after it returns. `fn` is called whether the handle is
        kept, dropped or waited for, and also when `herring.shutdown` ends the operation.
        `herring.shutdown` waits up to 10 s for callbacks. An exception in `fn` is logged.

        Args:
          fn: A function of this handle; ``handle.wait()`` in it returns or raises at once.

        Raises:
          ShutdownError: The operation was started by the parent of this forked process.
        """
        function_of(fn, "fn")
        if self._callbacks is None:
            self._callbacks = DoneCallbacks()
        self._callbacks.add(fn, self, self._when_done)

    def _when_done(self, run: Callable[[], None]) -> bool:
        """Arranges for `run` to be called at the operation's end; False if that has passed."""
        return call_later(self._operation, run)


def submit(
    kind: str,
    array: Any,
    call: CallOptions,
    *,
    waits: bool = True,
    agreement: str = "",
    listed: bool = False,
    into: Any = None,
    anywhere: bool = False,
    check: Callable[[], dict[str, Any]] = dict,
    **options: Any,
) -> _core.Operation:
    """Starts a collective.

    Args:
      waits: Whether the caller waits for the operation at once, so that no other thread has to be
        woken to start it.
      agreement: What all ranks must give alike besides what the core compares, in words.
      listed: Whether `array` is a list, whose arrays get their results all at once or not at all.
      anywhere: Whether arrays of a list may be on a GPU; `return_to` of the operation brings its
        results there. All-reduces and broadcasts take arrays on a GPU anyway.
      check: A function called before anything is started; it returns more options.
    """
    with call.refusing(kind) as full_name:
        options |= check()
        operation = job().submit(
            kind,
            array,
            full_name,
            timeout=seconds_of(call.timeout),
            waits=waits,
            group=scope_of(call.group).handle,
            agreement=agreement,
            listed=listed,
            into=into,
            anywhere=anywhere,
            **options_of(kind, options, scope_of(call.group).size, call.group),
        )
    if kind in _IN_PLACE:
        note_write(array)
    return operation


def note_write(array: Any) -> None:
    """Tells autograd that a tensor, or each of a list, has changed, so that stale use raises."""
    if isinstance(array, list):
        for one in array:
            note_write(one)
        return
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor) and not array.is_inference():
        torch.autograd.graph.increment_version(array)
