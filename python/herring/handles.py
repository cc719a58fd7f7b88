"""What is called when an operation is complete, and the threads that call it."""

from __future__ import annotations

import atexit
import os
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from herring import _core

__all__ = ["DoneCallbacks", "call_apart", "call_later", "ending_a_job"]

_PATIENCE = 10.0  # seconds for which the end of a job waits for callbacks
_IDLE = 5.0  # seconds after which a thread that has nothing to call ends

_lock = threading.Lock()  # of all lists of callbacks; nothing of the user's runs under it


def _in_forked_child() -> None:
    global _lock, _apart
    _lock = threading.Lock()  # whoever held it did not come along
    _apart = _Apart()


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
    _apart.wait_until_idle(_PATIENCE)


_here = threading.local()


class _Apart:
    """Threads for calls that may wait for one another: as many as there are calls under way."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[Callable[[], object]] = deque()
        self._idle = 0
        self._busy = 0

    def call(self, function: Callable[[], object]) -> None:
        with self._changed:
            self._waiting.append(function)
            if self._idle >= len(self._waiting):
                self._changed.notify_all()
                return
        try:
            threading.Thread(target=self._run, name="herring-apart", daemon=True).start()
        except RuntimeError:  # no more threads, or the interpreter ends
            with self._changed:
                if function not in self._waiting:
                    return  # an earlier thread has taken it
                self._waiting.remove(function)
            function()

    def _run(self) -> None:
        _here.apart = True
        while (function := self._next()) is not None:
            try:
                function()
            except BaseException:
                report("what was to follow an operation")
            del function
            with self._changed:
                self._busy -= 1
                self._changed.notify_all()

    def _next(self) -> Callable[[], object] | None:
        with self._changed:
            self._idle += 1
            self._changed.wait_for(lambda: self._waiting, _IDLE)
            self._idle -= 1
            if not self._waiting:
                return None
            self._busy += 1
            return self._waiting.popleft()

    @contextmanager
    def not_waited_for(self) -> Iterator[None]:
        if not getattr(_here, "apart", False):
            yield
            return
        with self._changed:
            self._busy -= 1
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._busy += 1

    def wait_until_idle(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        with self._changed:
            while self._busy or self._waiting:
                if not self._changed.wait(deadline - time.monotonic()):
                    return


_apart = _Apart()


def call_apart(function: Callable[[], object]) -> None:
    """Calls it in a thread that nobody else waits for; at once, also while earlier calls wait.

    `herring.shutdown` waits for it up to 10 s. What it raises is logged.
    """
    _apart.call(function)


@atexit.register
def _at_exit() -> None:
    # Also where a call has ended the job: in torch's C++ it would end the process with an abort.
    _apart.wait_until_idle(_PATIENCE)


def ending_a_job() -> AbstractContextManager[None]:
    """In it, the end of the job does not wait for this thread, should it be one of its own."""
    return _apart.not_waited_for()


def report(what: str) -> None:
    """Logs the exception that is being handled."""
    _core.log_error(f"{what} has raised an exception:\n{traceback.format_exc().rstrip()}")


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
