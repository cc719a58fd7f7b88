"""Integer handles: what was started, by number, until it is synchronized.

A call is one operation of the core; what it returns is made of that when it is synchronized.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from herring import _core
from herring.arrays.calls import name_of_next, refuse
from herring.arrays.collectives import submit
from herring.arrays.devices import take_back
from herring.arrays.groups import Group, scope_of
from herring.arrays.runtime import forget_job
from herring.errors import (
    HerringError,
    InvalidArgumentError,
    PeerLostError,
)
from herring.horovod.common import timeline
from herring.horovod.common.exceptions import as_horovod, internal_errors
from herring.horovod.common.process_sets import ProcessSet, group_of

__all__ = ["Call", "poll", "synchronize"]


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
      core_kind: the core's name of it.
      name: the caller's; None: the next of its kind.
      process_set: who takes part.
      queues: whether it waits for an earlier one of this name, instead of refusing.

    Attributes:
      finish: makes its result of the complete operation.

    Raises:
      InvalidArgumentError: an operation of this kind and name is in flight in the process set; the
        process set cannot be used.
    """

    def __init__(
        self,
        kind: str,
        core_kind: str,
        name: str | None,
        process_set: ProcessSet,
        *,
        queues: bool = False,
    ) -> None:
        self.group: Group | None = group_of(process_set)
        self.scope = scope_of(self.group)
        label = f"horovod.{kind}"
        self.name = name_of_next(label, self.group) if name is None else f"{label}.{name}"
        self.key: Hashable = (process_set.process_set_id, self.name)
        self.finish: Callable[[], Any] = _nothing
        self._kind = core_kind
        self._operation: _core.Operation | None = None
        self._array: Any = None  # where its result comes, on a GPU
        self._told = False  # the others, of what this rank does
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

    def start(self, array: Any, *, about: str = "", **options: Any) -> _core.Operation:
        """Starts its operation.

        Args:
          array: of this rank; a list of them with ``listed=True``.
          about: what ranks must have alike beside what the core sees of the operation, in words.
          options: of its kind.
        """
        self._told = True  # with an error too
        self._operation = submit(
            self._kind,
            array,
            self.name,
            None,
            self.group,
            waits=False,
            agreement=about,
            **options,
        )
        if self._operation.comes_back:
            self._array = array
        return self._operation

    def __enter__(self) -> Call:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        """Tells the others that this rank does not start it, if it has failed."""
        if error is None:
            self._noted = timeline.started(self.name, self._operation)
            return
        with _lock:
            if self._operation is None:
                _in_flight.pop(self.key, None)
        if isinstance(error, PeerLostError):
            raise as_horovod(error) from error  # it was lost before
        if not self._told and isinstance(error, Exception):
            refuse(self._kind, self.name, self.group, error)

    def done(self) -> bool:
        """Whether `result` would return, or raise, at once."""
        return self._operation is not None and self._operation.done()

    def wait(self) -> None:
        """Returns when it is complete, or has failed; leaves its result alone."""
        if self._operation is not None:
            with contextlib.suppress(HerringError):
                self._operation.wait()

    def result(self) -> Any:
        """Waits for it, and takes its result.

        Raises:
          HorovodInternalError: it has failed; also an error of Herring's that says why.
        """
        assert self._operation is not None
        with internal_errors():
            try:
                self._operation.wait()
                if self._operation.comes_back:
                    take_back(self._operation, self._array, 0.0)
            finally:
                self.forget()
                self._noted()
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
