"""The works that torch's collectives return, for operations that are under way in the core."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from herring import _core
from herring.arrays.devices import take_back
from herring.arrays.handles import call_later
from herring.errors import HerringError, PeerLostError, ShutdownError, TimeoutError
from herring.torch import devices
from herring.torch.backend.outside import outside_graphs
from herring.torch.backend.tensors import copy_back
from herring.torch.promises import Promise
from herring.torch.ranges import work_range
from herring.torch.tensors import check_not_capturing

_SLICE = 0.5  # seconds after which a wait checks whether its group was aborted

Operations = Sequence[_core.Operation]
# What follows complete operations: nothing, or more operations and what follows these.
Then = Callable[[Operations], tuple[Operations, Any] | None]


class Owner:
    """What works know about their process group, as long as the group has the same members.

    Args:
      ended: Why the group has no members; empty if it has some.
    """

    def __init__(self, ended: str = "") -> None:
        # The reason why the group was aborted or has ended on this rank; empty if neither.
        self.aborted = ended
        # The first error of a work because a peer was lost; None if there was none.
        self.lost: PeerLostError | None = None
        self._ended = bool(ended)
        self._steps = 0  # under way
        self._changed = threading.Condition()
        self._promised: weakref.WeakSet[_Work] = weakref.WeakSet()

    def error(self) -> HerringError:
        """Returns the error of works and calls after an abort, or after the end."""
        return ShutdownError(self.aborted) if self._ended else HerringError(self.aborted)

    def expect(self, work: _Work) -> None:
        """Registers a work whose future was handed out, and which fails if the group aborts."""
        with self._changed:
            self._promised.add(work)
        if self.aborted:
            work.done(self.error())

    def explained(self, failure: HerringError) -> HerringError:
        """Returns the error of a work whose operation has failed."""
        if isinstance(failure, ShutdownError) and self._ended:
            return self.error()
        if isinstance(failure, PeerLostError) and self.lost is None:
            self.lost = failure
        return _of_torch(failure)

    def abort(self, why: str) -> None:
        """Fails waits, and the futures that were handed out."""
        self.aborted = why
        with self._changed:
            works = list(self._promised)
        for work in works:
            work.done(self.error())

    def end(self, why: str, seconds: float) -> None:
        """Fails works, and lets none of them touch tensors or start operations any more.

        Args:
          seconds: How long the works that do so at this moment may take.

        Raises:
          TimeoutError: They took longer.
        """
        with self._changed:
            self.aborted = why
            self._ended = True
            if not self._changed.wait_for(lambda: self._steps == 0, seconds):
                raise TimeoutError(
                    "the process group cannot end, because results of its operations are being "
                    "copied still"
                )
        self.abort(why)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Keeps the group from ending while a work uses it; ShutdownError if it has ended."""
        with self._changed:
            if self._ended:
                raise self.error()
            self._steps += 1
        try:
            yield
        finally:
            with self._changed:
                self._steps -= 1
                self._changed.notify_all()


def back_to(
    taken: Any, there: bool, dense: torch.Tensor | None = None, target: torch.Tensor | None = None
) -> Then | None:
    """Returns a function that brings the result of an operation in place to where it belongs.

    Args:
      there: Whether that array is on a GPU.
      dense: The tensor that the core was given; None means the caller's own tensor.

    Returns:
      The function, or None if the result is where it belongs already.
    """
    copies = dense is not None and target is not None and dense.data_ptr() != target.data_ptr()
    if not there and not copies:
        return None

    def then(operations: Operations) -> None:
        if there:
            take_back(operations[0], taken, 0.0)
        if dense is not None and target is not None:
            copy_back(target, dense)

    return then


# The core's advice after a timeout, and the advice that replaces it for torch.distributed.
_MORE_TIME = "give it more time (timeout=, HERRING_TIMEOUT)"
_MORE_TIME_HERE = (
    "give the group a longer timeout (timeout=timedelta(...) of init_process_group or new_group; "
    "HERRING_TIMEOUT does not apply to it)"
)


def _of_torch(error: HerringError) -> HerringError:
    """Returns an error of the core, with advice that helps users of torch.distributed."""
    if not isinstance(error, TimeoutError):
        return error
    return _timed_out(str(error).replace(_MORE_TIME, _MORE_TIME_HERE))


def _timed_out(text: str) -> TimeoutError:
    """Returns an error with the words by which programs for other backends know a timeout."""
    return TimeoutError(f"timed out: {text}")


class _Work(dist.Work):
    """The base class of works, which get their outputs or an error through `_finish`."""

    def __init__(self, owner: Owner, outputs: list[torch.Tensor]) -> None:
        super().__init__()
        self.watched = False  # whether the hooks of the process group wait for it
        self._owner = owner
        self._outputs = outputs
        self._lock = threading.Lock()
        self._finished = False
        self._error: BaseException | None = None
        self._promise: Promise | None = None

    def _finish(self, error: BaseException | None = None) -> Promise | None:
        """Stores the outcome; returns the promise that must be completed, if there is one."""
        with self._lock:
            if self._finished:
                return None  # an abort has finished the work
            self._error = error
            self._finished = True
            return self._promise

    def done(self, error: BaseException | None = None) -> None:
        """Completes the work, or fails it if `error` is given, unless it is complete."""
        promise = self._finish(error)
        if promise is not None:
            promise.settle(self._outputs, error)

    def _require_not_aborted(self) -> None:
        if self._owner.aborted:
            raise self._owner.error()

    def _wait(self, limit: float) -> None:
        """Waits for the work; TimeoutError after `limit` seconds. 0 means its own deadline."""
        raise NotImplementedError

    @outside_graphs
    def wait(self, timeout: timedelta | None = None) -> bool:
        """Waits until the outputs are ready; other threads can run and Ctrl-C works meanwhile.

        Args:
          timeout: How long to wait at most; None or zero means until the operations' own deadlines.

        Raises:
          TimeoutError: The work was not complete in time; its operations go on.
          InvalidArgumentError: A CUDA graph is being captured; the operations go on.
          HerringError: The work failed; the outputs are undefined.
        """
        self._check_not_capturing()
        self._wait(0.0 if timeout is None else timeout.total_seconds())
        if self._error is not None:
            raise type(self._error)(*self._error.args)
        return True

    def _check_not_capturing(self) -> None:
        """Raises an error inside a capture, in which nothing may wait for what is outside of it."""
        check_not_capturing(self._outputs, "this work")

    def _poll(self) -> None:
        """Finishes the work if this is possible without waiting."""

    def _follow(self) -> None:
        """Makes sure that the work finishes even if nobody waits for it."""

    @outside_graphs
    def get_future(self) -> torch.futures.Future[Any]:
        """Returns a future of the outputs, a list of tensors, or of the error."""
        self._check_not_capturing()
        with self._lock:
            if self._promise is not None:
                return self._promise.future
            devices = sorted({t.device for t in self._outputs if t.is_cuda}, key=str)
            promise = self._promise = Promise(devices)
            finished = self._finished
        if finished:
            promise.settle_here(self._outputs, self._error)
        else:
            self._owner.expect(self)
            self._follow()
        return promise.future

    @outside_graphs
    def is_completed(self) -> bool:
        """Returns whether `wait` would return or raise at once."""
        self._poll()
        return self._finished

    @outside_graphs
    def is_success(self) -> bool:
        """Returns whether the work is complete and has not failed."""
        return self.is_completed() and self._error is None

    @outside_graphs
    def exception(self) -> BaseException | None:
        """Returns why the work failed; None if it has not failed, or not yet."""
        return self._error if self.is_completed() else None

    @outside_graphs
    def result(self) -> list[torch.Tensor]:
        """Waits for the outputs and returns them."""
        self.wait()
        return self._outputs

    def synchronize(self) -> None:
        """Waits until the outputs are ready."""
        self.wait()


class OperationWork(_Work):
    """A work for operations of the core, and for what follows them.

    Args:
      then: A function called once, by the thread that finds the operations complete. It copies
        results to where they belong, or starts a next step.
      follow: Whether `then` must be called even if nobody waits.
    """

    def __init__(
        self,
        owner: Owner,
        operations: Operations,
        outputs: list[torch.Tensor],
        then: Then | None = None,
        *,
        follow: bool = False,
        name: str = "",
    ) -> None:
        super().__init__(owner, outputs)
        self._name = name
        self._operations = operations
        self._then = then
        # Another thread may write the outputs, after the work that was queued for them by now.
        self._begun = devices.Moment(outputs if then is not None else [])
        self._step = threading.Lock()
        self._source = -1
        self._returned: devices.Moment | None = None
        if follow and then is not None:
            self._follow()

    def _wait(self, limit: float) -> None:
        with work_range("wait", self._name):
            self._wait_for_all(limit)

    def _wait_for_all(self, limit: float) -> None:
        deadline = time.monotonic() + limit if limit > 0 else None
        while not self._finished:
            operations = self._operations
            for operation in operations:
                self._wait_for(operation, operations, deadline)
            self._advance(operations)
        if self._error is None and self._returned is not None:
            self._returned.wait()

    def _wait_for(
        self, operation: _core.Operation, together: Operations, deadline: float | None
    ) -> None:
        while not operation.done() and _failure_of(together) is None:
            self._require_not_aborted()
            left = _SLICE if deadline is None else min(_SLICE, deadline - time.monotonic())
            if left <= 0:
                raise _timed_out(
                    "wait() has reached its timeout; the operation goes on until its own deadline"
                )
            try:
                operation.wait(left)
            except HerringError as error:
                if operation.done():
                    return  # _advance() finds the reason
                if isinstance(error, ShutdownError):
                    raise  # this process is a forked child

    def _advance(self, operations: Operations) -> None:
        """Takes the step after these operations, unless it was taken already.

        The operations are complete, or one has failed; the others need not be waited for then.
        """
        with self._step:
            if self._finished or self._operations is not operations:
                return
            error: Exception | None = None
            following = interrupt = None
            try:
                failure = _failure_of(operations)
                if failure is not None:
                    raise self._owner.explained(failure)
                with self._owner.step():
                    following = self._follow_up(operations)
            except Exception as raised:
                error = raised
            except BaseException as raised:  # Ctrl-C; perhaps only some results were taken
                interrupt = raised
                error = HerringError("interrupted while results were taken; outputs are undefined")
            if following is not None:
                self._operations, self._then = following
                return
            self._then = None
            # The work finishes before another thread, which may wait here, sees the operations
            # complete.
            promise = self._finish(error)
        if promise is not None:
            promise.settle(self._outputs, error)
        if interrupt is not None:
            raise interrupt

    def _follow_up(self, operations: Operations) -> tuple[Operations, Then | None] | None:
        for operation in operations:
            operation.wait()
        if len(operations) == 1:
            self._source = _source_of(operations[0])
        if self._then is None:
            return None
        self._begun.wait()
        following = self._then(operations)
        self._returned = devices.Moment(self._outputs)
        return following

    def _poll(self) -> None:
        if not self._finished:
            self._check_not_capturing()
        while not self._finished:
            operations = self._operations
            done = all(operation.done() for operation in operations)
            if not done and _failure_of(operations) is None:
                return
            self._advance(operations)

    def _follow(self) -> None:
        while not self._finished:
            operations = self._operations
            counted = _Countdown(len(operations) + 1)

            def one_done(counted: _Countdown = counted, after: Operations = operations) -> None:
                if counted.last() or _failure_of(after) is not None:
                    self._advance(after)
                    self._follow()

            for operation in operations:
                if not call_later(operation, one_done):
                    counted.last()
            if not counted.last() and _failure_of(operations) is None:
                return  # the callback thread goes on from here
            self._advance(operations)

    def _source_rank(self) -> int:
        """Returns the rank, inside the group, that sent the received message."""
        self.wait()
        return self._source

    source_rank = _source_rank


class _Countdown:
    def __init__(self, count: int) -> None:
        self._lock = threading.Lock()
        self._count = count

    def last(self) -> bool:
        with self._lock:
            self._count -= 1
            return self._count == 0


def _failure_of(operations: Operations) -> HerringError | None:
    """Returns the error of a failed operation, after which the others may never be complete."""
    for operation in operations:
        if operation.done():
            try:
                operation.wait()
            except HerringError as error:
                return error
    return None


def _source_of(operation: _core.Operation) -> int:
    counts = operation.counts
    return int(counts[0]) if len(counts) == 2 else -1


class LocalWork(_Work):
    """A work that another call of this process completes, by `done`."""

    def __init__(self, owner: Owner, outputs: list[torch.Tensor], rank: int, limit: float) -> None:
        super().__init__(owner, outputs)
        self._complete = threading.Event()
        self._rank = rank
        self._limit = limit

    def _finish(self, error: BaseException | None = None) -> Promise | None:
        promise = super()._finish(error)
        self._complete.set()
        return promise

    def _wait(self, limit: float) -> None:
        deadline = time.monotonic() + (limit if limit > 0 else self._limit)
        while not self._complete.wait(min(_SLICE, max(deadline - time.monotonic(), 0.0))):
            self._require_not_aborted()
            if time.monotonic() >= deadline:
                raise _timed_out("this message from a rank to itself has no counterpart")

    def _source_rank(self) -> int:
        self.wait()
        return self._rank


class JoinedWork(_Work):
    """Several works as one."""

    def __init__(self, owner: Owner, works: Sequence[Any]) -> None:
        super().__init__(owner, [])
        self._works = list(works)

    def _wait(self, limit: float) -> None:
        deadline = time.monotonic() + limit
        failure = None
        for work in self._works:
            left = max(deadline - time.monotonic(), 1e-3)
            try:
                work.wait(timedelta(seconds=left) if limit > 0 else timedelta(0))
            except Exception as error:
                failure = failure or error
        if failure is not None:
            raise failure  # the first one, when all works are complete

    @outside_graphs
    def is_completed(self) -> bool:
        """Returns whether all works are complete."""
        return all(work.is_completed() for work in self._works)

    @outside_graphs
    def is_success(self) -> bool:
        """Returns whether all works are complete and none has failed."""
        return all(work.is_success() for work in self._works)

    @outside_graphs
    def exception(self) -> BaseException | None:
        """Returns the error of the first work that failed; None if none has failed yet."""
        return next(filter(None, [work.exception() for work in self._works]), None)

    @outside_graphs
    def result(self) -> list[torch.Tensor]:
        """Waits for the outputs of all works and returns them."""
        self.wait()
        return [tensor for work in self._works for tensor in work.result()]

    @outside_graphs
    def get_future(self) -> torch.futures.Future[Any]:
        """Returns a future of the outputs of all works, as one list."""
        if not self._works:
            done: torch.futures.Future[Any] = torch.futures.Future()
            done.set_result([])
            return done

        def flat(every: Any) -> list[torch.Tensor]:
            return [tensor for one in every.wait() for tensor in one.wait()]

        return torch.futures.collect_all([work.get_future() for work in self._works]).then(flat)
