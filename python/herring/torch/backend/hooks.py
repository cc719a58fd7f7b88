"""The completion hooks and abort hooks that a program registers with a process group.

torch has one completion hook for each group, which is called after every work that has ended well.
From torch 2.14 on it also has abort hooks, which are called before a group gives up: on a timeout,
when a peer is lost, and before `abort`. They exist so that a program can save what it knows. The
methods are there with every version of torch.
"""

from __future__ import annotations

import dataclasses
import datetime
import threading
import time
from collections.abc import Callable
from typing import Any

from torch._C import _distributed_c10d as c10d

from herring.arrays.apart import report
from herring.errors import InvalidArgumentError, PeerLostError, TimeoutError

# torch's names for what the methods of a process group do.
_TYPES = {
    "all_gather_single": "_ALLGATHER_BASE",
    "all_gather_single_coalesced": "COALESCED",
    "all_to_all_single": "ALLTOALL_BASE",
    "gather_single": "GATHER",
    "recv_anysource": "RECVANYSOURCE",
    "reduce_scatter_single": "_REDUCE_SCATTER_BASE",
    "reduce_scatter_single_coalesced": "REDUCE_SCATTER_TENSOR_COALESCED",
}


@dataclasses.dataclass(frozen=True)
class WorkInfo:
    """What a completion hook learns; torch's own class cannot be made in Python.

    Attributes:
      op_type: torch's `OpType` of the collective.
      seq: The number of the call in its group, from 1 on.
      time_started: When the collective was called.
      time_finished: When it was seen to be complete.
      active_duration: The time between the two.
    """

    op_type: Any
    seq: int
    time_started: datetime.datetime
    time_finished: datetime.datetime
    active_duration: datetime.timedelta


class Hooks:
    """The hooks of one process group."""

    def __init__(self) -> None:
        self.any = False  # read at every call, so it must be cheap
        self._changed = threading.Condition()
        self._completion: Callable[[Any], object] | None = None
        self._abort: dict[int, Callable[[], object]] = {}
        self._pending = 0
        self._gone = False  # whether the loss of the group was told

    @property
    def has_completion(self) -> bool:
        """Whether a completion hook is registered."""
        return self._completion is not None

    def on_completion(self, hook: Callable[[Any], object]) -> None:
        """Registers the completion hook.

        Args:
          hook: A function of a `WorkInfo`. A thread of Herring calls it.

        Raises:
          InvalidArgumentError: The group has one already, or it is not a function.
        """
        _require_callable(hook, "completion hook")
        with self._changed:
            if self._completion is not None:
                raise InvalidArgumentError("the process group has a completion hook already")
            self._completion = hook
            self.any = True

    def on_abort(self, number: int, hook: Callable[[], object]) -> None:
        """Registers an abort hook, or replaces the one of the same number.

        Args:
          hook: A function without arguments. The thread that finds the failure calls it.

        Raises:
          InvalidArgumentError: It is not a function.
        """
        _require_callable(hook, "abort hook")
        with self._changed:
            self._abort[number] = hook
            self.any = True

    def forget(self, number: int) -> None:
        """Removes an abort hook if it is registered."""
        with self._changed:
            self._abort.pop(number, None)
            self.any = bool(self._abort) or self._completion is not None

    def watch(self, work: Any, method: str, number: int) -> None:
        """Calls the hooks when a work ends; a work that is watched already has its hooks."""
        if getattr(work, "watched", True):  # a work of another backend
            return
        work.watched = True
        began, clock = datetime.datetime.now(), time.monotonic()
        with self._changed:
            self._pending += 1

        def ended(_future: Any) -> None:
            try:
                self._ended(work, method, number, began, time.monotonic() - clock)
            finally:
                with self._changed:
                    self._pending -= 1
                    self._changed.notify_all()

        work.get_future().add_done_callback(ended)

    def _ended(
        self, work: Any, method: str, number: int, began: datetime.datetime, seconds: float
    ) -> None:
        error = work.exception()
        if isinstance(error, PeerLostError):
            self.group_is_lost()
        elif isinstance(error, TimeoutError):
            self._call_abort_hooks()
        hook = self._completion
        if error is not None or hook is None:
            return  # torch's completion hooks hear only of what has ended well
        duration = datetime.timedelta(seconds=seconds)
        name = _TYPES.get(method, method.upper())
        kind = getattr(c10d.OpType, name, c10d.OpType.UNKNOWN)
        try:
            hook(WorkInfo(kind, number, began, began + duration, duration))
        except Exception:
            report("a completion hook of a process group")

    def group_is_lost(self) -> None:
        """Calls the abort hooks unless the end of the group was told before."""
        with self._changed:
            told, self._gone = self._gone, True
        if not told:
            self._call_abort_hooks()

    def begin_again(self) -> None:
        """Lets the group be lost once more, because it has other members now."""
        with self._changed:
            self._gone = False

    def _call_abort_hooks(self) -> None:
        with self._changed:
            hooks = list(self._abort.values())
        for hook in hooks:
            try:
                hook()
            except Exception:
                report("an abort hook of a process group")

    def wait(self, seconds: float) -> None:
        """Waits until the hooks of all works that have begun were called, at most some seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._pending == 0, seconds)


def _require_callable(hook: object, what: str) -> None:
    if not callable(hook):
        raise InvalidArgumentError(f"the {what} is {hook!r}; it must be a function")
