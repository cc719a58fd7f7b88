"""The operations of one list, and the handle of all of them together."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable
from typing import Any

from herring import _core
from herring.arrays.arguments import seconds_of
from herring.arrays.collectives import Handle, submit
from herring.arrays.grouped.listed import Listed
from herring.arrays.groups import Group, scope_of
from herring.arrays.handles import call_later
from herring.arrays.runtime import job
from herring.errors import (
    HerringError,
    MismatchError,
    PeerLostError,
    ShutdownError,
)

_DTYPES = 10  # that there are: a list has no more operations


class Call:
    """The operations of a list: one per dtype, all of them known to the servers as one call.

    Args:
      kind: the collective, as the servers know it.
      name: of the call; its first operation has it, the others have a number behind it.
      group: those who take part; None: all ranks.
    """

    def __init__(self, kind: str, name: str, group: Group | None) -> None:
        self.kind = kind
        self.group = group
        self.names = [name, *(f"{name}.{index}" for index in range(1, _DTYPES))]
        self.scope = scope_of(group)
        self.operations: list[_core.Operation] = []
        self._known = 0  # names that the servers know of

    def start(self, array: Any, timeout: float | None, **options: Any) -> None:
        """Starts the next operation."""
        name = self.names[self._known]
        self._known += 1  # with an error too: submit() tells the others
        self.operations.append(
            submit(self.kind, array, name, timeout, self.group, **options),
        )

    def refuse(self, error: Exception) -> None:
        """Tells the others that this rank will not do what it has not started.

        A list of another rank may have more dtypes than this one's. As every rank does so after a
        failure, all of them have made the same calls, and may use the name again.
        """
        if isinstance(error, (PeerLostError, ShutdownError)):
            return  # nobody is left to tell
        known = isinstance(error, HerringError)
        why = str(error) if known else f"{type(error).__name__}: {error}"
        with contextlib.suppress(HerringError):
            for name in self.names[self._known :]:
                job().refuse(self.kind, name, why, self.scope.handle)
        self._known = _DTYPES

    def explain(self, error: Exception, listed: Listed) -> Exception:
        """The error of an operation, in terms of the list."""
        if not isinstance(error, MismatchError):
            return error
        # What ranks agree about travels in a field that these operations do not use.
        text = re.sub(r", root (\d+)", lambda found: f", list #{int(found[1]):x}", str(error))
        rank = job().rank
        return MismatchError(f"{text}; rank {rank} has list #{listed.number:x}, {listed}")


class GroupedHandle(Handle):
    """A grouped operation under way, for all arrays of its list."""

    def __init__(self, call: Call, listed: Listed, finish: Callable[[], Any]) -> None:
        super().__init__(call.operations[0], listed.arrays)
        self._call = call
        self._listed = listed
        self._take_results = finish
        self._lock = threading.Lock()
        self._finished = False
        self._result: Any = None
        self._error: Exception | None = None
        self._run: Callable[[], None] | None = None
        self._left = len(call.operations)

    def watch(self) -> None:
        """Sees to it that the results reach the arrays, also if nobody waits."""
        for operation in self._call.operations:
            if not call_later(operation, self._one_done):
                self._one_done()

    def done(self) -> bool:
        """Whether every array has its result, or all of it has failed."""
        return self._finished

    def wait(self, timeout: float | None = None) -> Any:
        """Waits for all arrays; as `Handle.wait`."""
        seconds = seconds_of(timeout)
        deadline = time.monotonic() + seconds
        for operation in self._call.operations:
            try:
                left = max(deadline - time.monotonic(), 1e-6) if seconds else 0.0
                operation.wait(left)
            except HerringError:
                if not operation.done():
                    raise
        self._finish()
        if self._error is not None:
            raise type(self._error)(*self._error.args)
        return self._result

    def _finish(self) -> None:
        """Copies the results to where they belong, once, or notes why there are none."""
        with self._lock:
            if self._finished:
                return
            try:
                for operation in self._call.operations:
                    operation.wait()
                self._result = self._take_results()
            except Exception as error:
                self._call.refuse(error)
                self._error = self._call.explain(error, self._listed)
            self._take_results = _nothing  # staging goes
            self._finished = True

    def _one_done(self) -> None:
        with self._lock:
            self._left -= 1
            if self._left > 0:
                return
        self._finish()
        if self._run is not None:
            self._run()

    def _when_done(self, run: Callable[[], None]) -> bool:
        with self._lock:
            if self._finished:
                return False
            self._run = run
            return True


def _nothing() -> None:
    """What is left to do."""
