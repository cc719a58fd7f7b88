"""Threads for calls that may wait for one another: what follows torch's futures."""

from __future__ import annotations

import atexit
import os
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from herring import _core

__all__ = ["call_apart", "not_waited_for", "report", "wait_for_calls_apart"]

_IDLE = 5.0  # seconds after which a thread that has nothing to call ends
_PATIENCE = 10.0  # seconds for which the end of a job, or of the process, waits for calls

_here = threading.local()


class Threads:
    """As many threads as there are calls under way.

    The executors of `concurrent.futures` have a largest number of them, with which calls that wait
    for one another hang, and the interpreter's exit waits for theirs without a bound.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[Callable[[], object]] = deque()
        self._idle = 0
        self._busy = 0

    def call(self, function: Callable[[], object]) -> None:
        """As `call_apart`."""
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
            except BaseException:  # also SystemExit: the thread is not the call's to end
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
        """As the function."""
        apart = int(getattr(_here, "apart", False))
        with self._changed:
            self._busy -= apart
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._busy += apart

    def wait(self, seconds: float) -> None:
        """Waits until all calls have returned."""
        with self._changed:
            self._changed.wait_for(lambda: not self._busy and not self._waiting, seconds)


_threads = Threads()


def _in_forked_child() -> None:
    global _threads
    _threads = Threads()  # the parent's did not come along


os.register_at_fork(after_in_child=_in_forked_child)


def call_apart(function: Callable[[], object]) -> None:
    """Has it called by a thread that nobody else waits for; at once, also while other calls wait.

    The end of a job, or of the process, waits for it up to 10 s. What it raises is logged.
    """
    _threads.call(function)


@contextmanager
def not_waited_for() -> Iterator[None]:
    """In it, `wait_for_calls_apart` does not wait for this thread, should it be such a call's."""
    with _threads.not_waited_for():
        yield


# At exit also where a call has ended the job: one that is in torch's C++ when the interpreter ends
# would end the process with an abort.
@atexit.register
def wait_for_calls_apart() -> None:
    """Waits until all calls have returned, up to 10 s."""
    _threads.wait(_PATIENCE)


def report(what: str) -> None:
    """Logs the exception that is being handled."""
    _core.log_error(f"{what} has raised an exception:\n{traceback.format_exc().rstrip()}")
