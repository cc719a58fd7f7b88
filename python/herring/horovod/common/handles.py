"""Keeps calls under way by integer handles until they are synchronized.

A call is one operation of the core. `synchronize` converts the operation's result to the result of
the call.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from herring import _core
from herring.arrays.calls import CallOptions, name_of_next, refuse
from herring.arrays.devices import check_not_capturing, take_back
from herring.arrays.groups import Group, scope_of
from herring.arrays.operations import submit
from herring.arrays.runtime import forget_job
from herring.errors import HerringError, InvalidArgumentError, PeerLostError
from herring.horovod.common.exceptions import as_horovod, internal_errors
from herring.horovod.common.process_sets import ProcessSet, group_of

Number = TypeVar("Number", bound=int)


class SparseHandle(int):
    """The handle of a sparse all-reduce; calling the handle is the same as synchronizing it."""

    def __call__(self) -> Any:
        """Waits for the result and returns it."""
        return synchronize(self)


class Call:
    """One call of the API, from its name to its result.

    Args:
      name: the name that the caller passed; None numbers the calls of each kind.
      queues: whether to wait for an earlier call with the same name instead of raising an error.
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
        # Converts the result of the complete operation to the result of the call.
        self.finish: Callable[[], Any] = _nothing
        self._kind = core_kind
        self._operation: _core.Operation | None = None
        self._array: Any = None  # The array on a GPU that receives the result.
        self._told = False  # Whether the other ranks know of this rank's call, or of its error.
        while (other := self._register(queues)) is not None:
            if not queues:
                raise InvalidArgumentError(
                    f"{kind}: an operation named '{name}' is in flight; synchronize it, or poll it "
                    "until it is complete, before you use the name again, or give each operation a "
                    "name of its own"
                )
            other.wait()

    def _register(self, queues: bool) -> Call | None:
        """Reserves the name, or returns the call in flight that has it.

        Whether a call is complete depends on time, and so may differ between ranks. What the
        program has called does not. So a name is in use until the program knows of its end.
        """
        with _lock:
            other = _in_flight.get(self.key)
            if other is not None and not (queues and other.done()):
                return other
            _in_flight[self.key] = self
        return None

    def start(self, array: Any, *, about: str = "", **options: Any) -> _core.Operation:
        """Starts the call's operation.

        Args:
          array: this rank's array, or a list of arrays with ``listed=True``.
          about: a text that must be equal on all ranks; it describes what the core cannot see.

        Returns:
          The operation.
        """
        self._told = True  # If `submit` fails, it tells the other ranks.
        self._operation = submit(
            self._kind,
            array,
            CallOptions(self.name, group=self.group),
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
        """Tells the other ranks, after an error, that this rank does not start the operation."""
        if error is None:
            return
        with _lock:
            if self._operation is None:
                _in_flight.pop(self.key, None)
        if isinstance(error, PeerLostError):
            raise as_horovod(error) from error  # The peer was lost before the call.
        if not self._told and isinstance(error, Exception):
            refuse(self._kind, self.name, self.group, error)

    def done(self) -> bool:
        """Returns whether `result` would return, or raise, without waiting."""
        return self._operation is not None and self._operation.done()

    def wait(self) -> None:
        """Waits until the operation is complete or has failed, and does not take its result."""
        if self._operation is not None:
            with contextlib.suppress(HerringError):
                self._operation.wait()

    def result(self) -> Any:
        """Waits for the operation and returns the result of the call."""
        assert self._operation is not None
        with internal_errors():
            if self._operation.on_device:
                check_not_capturing(self._operation, self._array)
            try:
                self._operation.wait()
                if self._operation.comes_back:
                    take_back(self._operation, self._array, 0.0)
            finally:
                self.forget()
            return self.finish()

    def forget(self) -> None:
        """Releases the name for another call."""
        with _lock:
            if _in_flight.get(self.key) is self:
                del _in_flight[self.key]

    def handle(self) -> int:
        """Keeps the call until it is synchronized.

        Returns:
          A handle: a number that no other call of this process has.
        """
        return self.handle_of(int)

    def handle_of(self, kind: type[Number]) -> Number:
        """Keeps the call until it is synchronized, and returns a handle of type `kind`."""
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
    """Returns whether an operation is complete or has failed, so that `synchronize` would not wait.

    If so, other operations may have its name.

    Args:
      handle: a handle that an ``..._async`` function returned.

    Raises:
      InvalidArgumentError: no operation under way has this handle.
    """
    with _lock:
        call = _calls.get(handle)
    if call is None:
        raise InvalidArgumentError(
            f"handle {handle!r} is unknown or was synchronized before; it must be a handle that "
            "an ..._async function returned"
        )
    if not call.done():
        return False
    call.forget()
    return True


def synchronize(handle: int) -> Any:
    """Waits for an operation and returns its result.

    Args:
      handle: a handle that an ``..._async`` function returned.

    Returns:
      A tensor, or a tuple or list of tensors; None if the handle is unknown or was synchronized
      before.

    Raises:
      HorovodInternalError: the operation failed; the error is also one of Herring's errors.
    """
    with _lock:
        call = _calls.pop(handle, None)
    if call is None:
        return None
    return call.result()
