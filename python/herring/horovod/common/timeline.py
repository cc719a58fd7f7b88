"""The timeline, a Chrome trace that shows each operation from its start to its completion."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import herring
from herring import _core
from herring.arrays.handles import call_later
from herring.arrays.runtime import forget_job
from herring.errors import InvalidArgumentError

__all__ = ["start_timeline", "stop_timeline"]


class _Trace:
    """The events of a trace: a row for each name, times in microseconds since the trace began."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.events: list[dict[str, Any]] = []
        self._rows: dict[str, int] = {}
        self._begin = time.monotonic_ns()

    def now(self) -> float:
        return (time.monotonic_ns() - self._begin) / 1000

    def add(self, name: str, begin: float) -> None:
        end = self.now()
        with _lock:
            row = self._rows.setdefault(name, len(self._rows))
            event = {"name": name, "ph": "X", "pid": 0, "tid": row, "ts": begin, "dur": end - begin}
            self.events.append(event)

    def write(self) -> None:
        with _lock:
            names = [
                {"name": "thread_name", "ph": "M", "pid": 0, "tid": row, "args": {"name": name}}
                for name, row in self._rows.items()
            ]
            text = json.dumps(names + self.events)
        self.path.write_text(text, encoding="utf-8")


_lock = threading.Lock()
_trace: _Trace | None = None


def start_timeline(file_path: str | os.PathLike[str], mark_cycles: bool = False) -> None:
    """Starts to record when operations start and when they are complete.

    Rank 0 writes a Chrome trace (for ``chrome://tracing``) at `stop_timeline`, or when the job
    ends. Other ranks do nothing. The trace contains the calls of this API and the rounds of
    `DistributedOptimizer`, as rank 0 sees them. Herring has no negotiation phase to show.

    Args:
      file_path: path of the trace file; its folder must exist.
      mark_cycles: ignored, as Herring has no cycles.

    Raises:
      InvalidArgumentError: the folder does not exist, or a timeline is being recorded already.
      ShutdownError: `init` has not been called.
    """
    global _trace
    del mark_cycles
    path = Path(file_path)
    if herring.rank() != 0:
        return
    if _trace is not None:
        raise InvalidArgumentError(
            f"a timeline is being recorded for {_trace.path}; call stop_timeline() first"
        )
    if not path.absolute().parent.is_dir():
        raise InvalidArgumentError(f"start_timeline({str(path)!r}): the folder does not exist")
    _trace = _Trace(path)


def stop_timeline() -> None:
    """Stops recording and writes the timeline. Does nothing if no timeline was started."""
    global _trace
    trace, _trace = _trace, None
    if trace is not None:
        trace.write()


forget_job.append(stop_timeline)


def begin() -> float:
    """Returns the current time to pass to `ended`; 0 if no timeline is being recorded."""
    trace = _trace
    return 0.0 if trace is None else trace.now()


def ended(name: str, since: float) -> None:
    """Records an event that began at `since` and ends now."""
    trace = _trace
    if trace is not None:
        trace.add(name, since)


def started(name: str, operation: _core.Operation | None) -> Callable[[], None]:
    """Records that an operation starts now, and arranges that its completion is recorded.

    Returns:
      A function to call when the operation is known to be complete; only the first call counts.
    """
    trace = _trace
    if trace is None or operation is None:
        return _nothing
    since, left = trace.now(), [True]

    def complete(*_: Any) -> None:
        with contextlib.suppress(IndexError):
            left.pop()
            trace.add(name, since)

    if not call_later(operation, complete):
        complete()
    return complete


def _nothing() -> None:
    """Does nothing, as no timeline is being recorded."""
