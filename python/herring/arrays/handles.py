"""Callbacks that are called when an operation is complete, and the thread that calls them."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from herring import _core
from herring.arrays.apart import report, wait_for_calls_apart

_lock = threading.Lock()  # guards all lists of callbacks; never held while user code runs


def _in_forked_child() -> None:
    global _lock
    _lock = threading.Lock()  # the thread that held the lock does not exist in the child


os.register_at_fork(after_in_child=_in_forked_child)


def call_later(operation: _core.Operation, callback: Callable[[], object]) -> bool:
    """Arranges for the job's callback thread to call `callback` when the operation is complete.

    The first callback starts that thread. `herring.shutdown` ends the thread, and waits up to 10 s
    for pending callbacks.

    Returns:
      False if the operation is complete already; nothing will be called then.

    Raises:
      ShutdownError: This process is a forked child of the process that started the operation.
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
        except BaseException:  # including SystemExit, which must not end this thread
            report("a callback of an operation")
        del callback  # otherwise a dropped handle's array would live until the next callback
    wait_for_calls_apart()


class DoneCallbacks:
    """The callbacks of one handle: each is called once, in the order in which they were added."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[Any], object]] | None = None  # None: no _run() is pending

    def add(
        self,
        callback: Callable[[Any], object],
        handle: Any,
        start: Callable[[Callable[[], None]], bool],
    ) -> None:
        """Adds a callback, or calls it at once.

        Args:
          start: Arranges for its argument to be called when the handle is complete; returns False
            if the handle is complete already.
        """
        with _lock:
            if self._waiting is not None:
                self._waiting.append(callback)  # earlier callbacks come first
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
        asked: BaseException | None = None  # exit, after the last callback
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
