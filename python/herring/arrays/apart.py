"""Threads for calls that may wait for one another, such as the callbacks of torch's futures."""

from __future__ import annotations

import atexit
import os
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from herring import _core

_IDLE = 5.0  # seconds after which an idle thread ends
_PATIENCE = 10.0  # seconds that the end of a job, or of the process, waits for calls

_here = threading.local()


class Threads:
    """A pool with as many threads as there are calls under way.

    An executor of `concurrent.futures` has a maximum number of threads, so calls that wait for one
    another would hang. The interpreter's exit would also wait for its threads without a limit.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[Callable[[], object]] = deque()
        self._idle = 0
        self._busy = 0

    def call(self, function: Callable[[], object]) -> None:
        """Runs `function` in a thread of this pool; see the module-level `call_apart`."""
        with self._changed:
            self._waiting.append(function)
            if self._idle >= len(self._waiting):
                self._changed.notify_all()
                return
        try:
            threading.Thread(target=self._run, name="herring-apart", daemon=True).start()
        except RuntimeError:  # the system has no more threads, or the interpreter is ending
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
            except BaseException:  # including SystemExit, which must not end this thread
                report("a callback of an operation")
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
        """Excludes the current call from those that `wait` waits for, inside the block."""
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
        """Waits until all calls have returned, for at most `seconds`."""
        with self._changed:
            self._changed.wait_for(lambda: not self._busy and not self._waiting, seconds)


_threads = Threads()


def _in_forked_child() -> None:
    global _threads
    _threads = Threads()  # the parent's threads do not exist in the child


os.register_at_fork(after_in_child=_in_forked_child)


def call_apart(function: Callable[[], object]) -> None:
    """Runs `function` at once in a thread of its own, even while other such calls wait.

    The end of a job, or of the process, waits up to 10 s for the call. An exception is logged.
    """
    _threads.call(function)


@contextmanager
def not_waited_for() -> Iterator[None]:
    """Excludes this thread from what `wait_for_calls_apart` waits for, inside the block."""
    with _threads.not_waited_for():
        yield


# This function also runs at exit, because a call may have ended the job. A call that is inside
# torch's C++ when the interpreter ends would abort the process.
@atexit.register
def wait_for_calls_apart() -> None:
    """Waits until all calls have returned, up to 10 s."""
    _threads.wait(_PATIENCE)


def report(what: str) -> None:
    """Logs the exception that is being handled; `what` names the function that raised it."""
    _core.log_error(f"{what} raised an exception:\n{traceback.format_exc().rstrip()}")
