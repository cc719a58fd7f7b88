"""What is called when an operation is complete, and the thread that calls it."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from herring import _core
from herring.arrays.apart import report, wait_for_calls_apart

__all__ = ["DoneCallbacks", "call_later"]

_lock = threading.Lock()  # of all lists of callbacks; nothing of the user's runs under it


def _in_forked_child() -> None:
    global _lock
    _lock = threading.Lock()  # whoever held it did not come along


os.register_at_fork(after_in_child=_in_forked_child)


def call_later(operation: _core.Operation, callback: Callable[[], object]) -> bool:
    """Has `callback` called when the operation is complete, by the callback thread of its job.

    That thread is started with the first callback, and ended by `herring.shutdown`, which waits up
    to 10 s for what is left to be called.

    Returns:
      False: the operation is complete already, and nothing will be called.

    Raises:
      ShutdownError: this is a forked child of the process that started the operation.
    """
    if operation.done():
        return False
    callbacks = operation.callbacks()
    with _lock:
        if callbacks.thread is None:
            thread = threading.Thread(
                target=_serve, args=(callbacks,), name="herring-callbacks", daemon=True
            )
            thread.start()
            callbacks.thread = thread
    return operation.call_when_done(callback)


def _serve(callbacks: _core.Callbacks) -> None:
    while (callback := callbacks.take()) is not None:
        try:
            callback()
        except BaseException:  # also SystemExit: the thread is not the callback's to end
            report("what was to follow an operation")
        del callback  # or the array of a dropped handle would live until the next one
    wait_for_calls_apart()


class DoneCallbacks:
    """The callbacks of one handle: each is called once, in the order in which they were added."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[Any], object]] | None = None  # None: run() is not to come

    def add(
        self,
        callback: Callable[[Any], object],
        handle: Any,
        start: Callable[[Callable[[], None]], bool],
    ) -> None:
        """Adds one, or calls it at once.

        Args:
          callback: called with `handle`.
          handle: what it belongs to.
          start: has its argument called when the handle is complete; False: it is already.
        """
        with _lock:
            if self._waiting is not None:
                self._waiting.append(callback)  # those that were added before come first
                return
            self._waiting = deque([callback])
        try:
            started = start(lambda: self._run(handle))
        except BaseException:
            with _lock:
                self._waiting = None
            raise
        if not started:
            self._run(handle)

    def _run(self, handle: Any) -> None:
        asked: BaseException | None = None  # to end, but not in the middle
        while True:
            with _lock:
                if not self._waiting:
                    self._waiting = None
                    break
                callback = self._waiting.popleft()
            try:
                callback(handle)
            except Exception:
                report(f"the callback {callback!r} of a handle")
            except BaseException as error:
                asked = error
        if asked is not None:
            raise asked
