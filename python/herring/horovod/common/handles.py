"""Integer handles: what was started, by number, until it is synchronized.

A call may be several operations of the core, all of them started at once; what it returns is put
together when it is synchronized.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Hashable
from typing import Any, Protocol, TypeVar

from herring.arrays.collectives import name_of_next, submit
from herring.arrays.digests import digest, explained
from herring.arrays.groups import Group, scope_of
from herring.arrays.runtime import forget_job, job
from herring.errors import (
    HerringError,
    InvalidArgumentError,
    PeerLostError,
    ShutdownError,
)
from herring.horovod.common import timeline
from herring.horovod.common.exceptions import as_horovod, internal_errors
from herring.horovod.common.process_sets import ProcessSet, group_of

__all__ = ["Call", "poll", "synchronize"]


class Pending(Protocol):
    """Something under way."""

    def done(self) -> bool:
        """Whether `wait` would return, or raise, at once."""

    def wait(self) -> Any:
        """Waits until it is complete."""


Number = TypeVar("Number", bound=int)


class SparseHandle(int):
    """The handle of a sparse all-reduce: `synchronize` takes it, and calling it is the same."""

    def __call__(self) -> Any:
        """Waits for the result, as `synchronize`."""
        return synchronize(self)


class Call:
    """One call of the API, from its name to its result.

    Args:
      kind: Horovod's name of the collective.
      name: the caller's; None: the next of its kind.
      process_set: who takes part.
      queues: whether it waits for an earlier one of this name, instead of refusing.

    Raises:
      InvalidArgumentError: an operation of this kind and name is in flight in the process set; the
        process set cannot be used.
    """

    def __init__(
        self, kind: str, name: str | None, process_set: ProcessSet, *, queues: bool = False
    ) -> None:
        self.group: Group | None = group_of(process_set)
        self.scope = scope_of(self.group)
        label = f"horovod.{kind}"
        self.name = name_of_next(label, self.group) if name is None else f"{label}.{name}"
        self.key: Hashable = (process_set.process_set_id, self.name)
        self.pending: list[Pending] = []
        self.finish: Callable[[], Any] = _nothing
        self.about: list[str] = []
        self._names: list[tuple[str, str]] = []
        self._started = False
        self._noted: Callable[[], None] = _nothing
        while (other := self._register()) is not None:
            if not queues:
                raise InvalidArgumentError(
                    f"{kind}: an operation named '{name}' is in flight; synchronize it before the "
                    "name is used again, or give each a name of its own"
                )
            other.wait()

    def _register(self) -> Call | None:
        """Takes the name; returns the call that has it, if there is one in flight."""
        with _lock:
            other = _in_flight.get(self.key)
            if other is not None and not other.done():
                return other
            _in_flight[self.key] = self
        return None

    def will_start(self, kind: str, count: int = 1) -> None:
        """Says which operations it consists of: what the others are told of if it fails.

        Args:
          kind: the core's name of the collective.
          count: of them.
        """
        names = [self.name, *(f"{self.name}.{i}" for i in range(1, count))]
        self._names = [(kind, name) for name in names]

    def start(self, array: Any, *, about: str = "", **options: Any) -> Any:
        """Starts the next operation.

        Args:
          array: of this rank.
          about: what ranks must have alike beside what the core sees of the operation, in words.
          options: of its kind.
        """
        if about:
            self.about.append(about)
            options["list"] = digest(about)
        kind, name = self._names.pop(0)
        operation = submit(kind, array, name, None, self.group, waits=False, **options)
        self.pending.append(operation)
        return operation

    def leave_to(self, pending: Callable[[], Pending]) -> Pending:
        """Starts something that tells the others itself if it fails."""
        self._names = []
        self.pending.append(pending())
        return self.pending[-1]

    def in_thread(self, function: Callable[[], Any]) -> Callable[[], Any]:
        """Starts a function that waits for its operations; it tells the others if it fails.

        Returns:
          What waits for it, and returns what it has.
        """
        return self.leave_to(lambda: _Thread(function, self.name)).wait

    def __enter__(self) -> Call:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        """Tells the others what this rank will not start, if it has failed."""
        self._started = True
        if error is None:
            self._noted = timeline.started(self.name, self.pending)
            return
        with _lock:
            if not self.pending:
                _in_flight.pop(self.key, None)
        if isinstance(error, PeerLostError):
            raise as_horovod(error) from error  # it was lost before
        if isinstance(error, ShutdownError) or not isinstance(error, Exception):
            return
        why = str(error) if isinstance(error, HerringError) else f"{type(error).__name__}: {error}"
        with contextlib.suppress(HerringError):
            for core_kind, name in self._names:
                job().refuse(core_kind, name, why, self.scope.handle)

    def done(self) -> bool:
        """Whether `result` would return, or raise, at once."""
        return self._started and all(one.done() for one in self.pending)

    def wait(self) -> None:
        """Returns when all of it is complete, or has failed; leaves its result alone."""
        for one in self.pending:
            with contextlib.suppress(HerringError):
                one.wait()

    def result(self) -> Any:
        """Waits for all of it, and takes its result.

        Raises:
          HorovodInternalError: it has failed; also an error of Herring's that says why.
        """
        first: HerringError | None = None
        with internal_errors():
            for one in self.pending:
                try:
                    one.wait()
                except HerringError as error:
                    first = first or explained(error, self.about, job().rank)
            self.forget()
            self._noted()
            if first is not None:
                raise first
            return self.finish()

    def forget(self) -> None:
        """The name may be used again."""
        with _lock:
            if _in_flight.get(self.key) is self:
                del _in_flight[self.key]

    def handle(self) -> int:
        """Keeps it until it is synchronized.

        Returns:
          A number that no other call of this process has.
        """
        return self.handle_of(int)

    def handle_of(self, kind: type[Number]) -> Number:
        """As `handle`, with a number of this type."""
        handle = kind(next(_numbers))
        with _lock:
            _calls[handle] = self
        return handle


def _nothing() -> None:
    return None


class _Thread:
    """A function that runs in a thread of its own."""

    def __init__(self, function: Callable[[], Any], name: str) -> None:
        self._function = function
        self._result: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._function()
        except BaseException as error:
            self._error = error

    def done(self) -> bool:
        """Whether it has returned, or raised."""
        return not self._thread.is_alive()

    def wait(self) -> Any:
        """Waits for it; returns or raises what it has."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._result


_lock = threading.Lock()
_numbers = itertools.count()
_calls: dict[int, Call] = {}
_in_flight: dict[Hashable, Call] = {}


def _forget() -> None:
    with _lock:
        _calls.clear()
        _in_flight.clear()


forget_job.append(_forget)


def poll(handle: int) -> bool:
    """Whether what a handle stands for is complete, or has failed: `synchronize` would not wait.

    Raises:
      InvalidArgumentError: nothing under way has this handle.
    """
    with _lock:
        call = _calls.get(handle)
    if call is None:
        raise InvalidArgumentError(
            f"handle {handle!r} was not given out, or was synchronized before; it must be one that "
            "an ..._async function has returned"
        )
    return call.done()


def synchronize(handle: int) -> Any:
    """Waits for what a handle stands for, and returns its result.

    Args:
      handle: from an ``..._async`` function.

    Returns:
      A tensor, or a tuple or list of them; None for a handle that was synchronized before.

    Raises:
      HorovodInternalError: it has failed; also an error of Herring's that says why.
    """
    with _lock:
        call = _calls.pop(handle, None)
    if call is None:
        return None
    return call.result()
