"""Series of rounds over one array."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from herring import _core
from herring.arrays.arguments import (
    boolean_of,
    count_of,
    name_given,
    operator_of,
    seconds_of,
    text_of,
)
from herring.arrays.calls import called, named
from herring.arrays.collectives import check_same, shape_of
from herring.arrays.groups import Group, scope_of
from herring.arrays.partial.quorum import Quorum, is_partial, quorum_of
from herring.arrays.partial.replay import Recorded, Replay
from herring.arrays.partial.statistics import RoundInfo, RoundStatistics
from herring.arrays.runtime import forget_job, job
from herring.errors import InvalidArgumentError

__all__ = ["PartialReduction", "allreduce_in_rounds", "flush", "partial_statistics"]


class PartialReduction:
    """A series of rounds over one array (collective: same arguments on every rank).

    Each worker contributes arrays, and takes the results of all rounds in order. What comes too
    late for a round is in the next one that closes.

    Args:
      elements: of the array.
      dtype: its name.
      sync: "solo", "majority", a `Quorum` or a `Replay`.
      op: "average" (floats) or "sum".
      name: identifies the series across ranks.
      statistics: goes on with these, of series before; a `Replay` repeats the series that follows
        in its recording.
      group: those who take part; None: all ranks. A `Replay` is of all ranks.

    Raises:
      InvalidArgumentError: a value out of range, or an op that cannot be summed up.
      MismatchError: ranks gave different arguments; the message lists them.
    """

    def __init__(
        self,
        elements: int,
        dtype: str,
        *,
        sync: str | Quorum | Replay,
        op: str = "average",
        name: str | None = None,
        statistics: RoundStatistics | None = None,
        group: Group | None = None,
    ) -> None:
        self.name = named(name, "partial", group)
        running, scope = job(), scope_of(group)
        self.statistics = RoundStatistics() if statistics is None else statistics
        self._replay: Recorded | None = None
        with called("allgather", f"{self.name}.sync", group):
            elements = count_of(elements, "elements")
            text_of(dtype, "dtype")
            op = operator_of(op)
            if isinstance(sync, Replay) and group is not None:
                raise InvalidArgumentError("a Replay is of all ranks; it takes no group")
            if not is_partial(sync, scope.size):
                raise InvalidArgumentError(
                    "a PartialReduction is partial: sync='full' is allreduce()"
                )
            if not isinstance(sync, Replay):
                quorum = quorum_of(sync, scope.size)
        check_same(
            f"the partial all-reduce '{self.name}'",
            f"sync={sync!r}, {elements} elements of {dtype}, op {op}",
            name=f"{self.name}.sync",
            group=group,
        )
        if isinstance(sync, Replay):
            self._replay = sync.open(self.statistics.series, self.name)
            quorum = _recorded_quorum(sync, self._replay, elements, dtype, op)
            quorum.check(running.size)
        self.quorum = quorum
        self._partial = _core.Partial.create(
            running,
            self.name,
            dtype,
            elements,
            op,
            quorum.divisor == "contributors",
            quorum.q,
            quorum.seconds,
            quorum.staleness,
            self._replay is not None,
            scope.handle,
        )
        self._recorder = self.statistics.begin(
            {"elements": elements, "dtype": dtype, "op": op, **dataclasses.asdict(quorum)}
            | {"grace": quorum.seconds},
            in_group=group is not None,
        )
        self._flushes = False
        self.ended = False

    @property
    def ready(self) -> int:
        """Results that `take` would return at once.

        In a replay those that were taken before the next contribution, which may still be coming.
        """
        if self._replay is not None:
            recorded = self._replay.taken_before(self._partial.produced + 1)
            if recorded is not None:
                return max(recorded - self._partial.taken, 0)
        return self._partial.ready

    @property
    def rounds(self) -> int:
        """Results taken."""
        return self._partial.taken

    @property
    def contributions(self) -> tuple[int, int]:
        """How many this worker has made, and how many of them are in results."""
        return self._partial.produced, self._partial.counted

    @property
    def memory(self) -> int:
        """Arrays set aside for contributions and results."""
        return self._partial.blocks

    def contribute(self, array: Any, *, waits: bool = True, last: bool = False) -> None:
        """Adds an array to the round that closes next; returns at once.

        Args:
          array: is copied.
          waits: the worker takes one more result before it goes on. Only workers that wait close
            rounds. False, after results were taken that had been missed: it goes on at once.
          last: the worker contributes nothing after this, and takes results until one with
            `RoundInfo.last`, which comes when all workers have said so.

        Raises:
          InvalidArgumentError: the array does not fit, a result was not taken, or a replay had
            something else here.
          HerringError: the job has failed.
        """
        self._contribute(
            array, boolean_of(waits, "waits"), boolean_of(last, "last"), caller_waits=False
        )

    def _contribute(
        self, array: Any, waits: bool = True, last: bool = False, caller_waits: bool = True
    ) -> None:
        """`caller_waits`: it takes a result at once, and sends what is to be sent meanwhile."""
        taken = self._partial.taken
        place = (0, 0, 0)
        if self._replay is not None:
            place = self._replay.place(self._partial.produced + 1, taken, waits, last)
        self._partial.contribute(array, waits, last, caller_waits, *place)
        self._recorder.contributed(taken, waits)

    def take(self, array: Any, timeout: float | None = None) -> RoundInfo:
        """Waits for the next round's result and writes it to `array`.

        Args:
          array: writable, of the series' shape.
          timeout: seconds to wait here; None: until the round's deadline.

        Raises:
          TimeoutError: the round did not end in time.
          PeerLostError: a process without which the job cannot go on is gone.
          MismatchError: a replayed round has other contributors than the recorded one.
        """
        info = self._partial.take(array, seconds_of(timeout))
        if self._replay is not None:
            self._replay.check(info)
        self.statistics.add(info)
        return info

    def allreduce(self, array: Any, timeout: float | None = None) -> RoundInfo:
        """Contributes `array` and writes the next round's result to it."""
        self._contribute(array)
        return self.take(array, timeout)

    def step(self, array: Any, result: Any, timeout: float | None = None) -> Iterator[RoundInfo]:
        """A step of eager SGD: takes what was missed, and contributes.

        Results of rounds that were missed come first; then nothing is waited for, and the
        contribution goes to the round that closes next. Otherwise the next round is waited for.
        A caller who leaves the loop has contributed as well.

        Args:
          array: the contribution.
          result: writable, of the series' shape; holds one result after the other.
          timeout: seconds to wait for the next round.

        Yields:
          What is known about each result, while `result` holds it.
        """
        contributed = missed = False
        try:
            while self.ready:
                missed = True
                yield self.take(result, timeout)
            self._contribute(array, waits=not missed, caller_waits=not missed)
            contributed = True
            if not missed:
                yield self.take(result, timeout)
        except GeneratorExit:
            if not contributed:
                self.contribute(array, waits=False)
            raise

    def flush(self, array: Any, timeout: float | None = None) -> Iterator[RoundInfo]:
        """Ends the series, with a last round that is the same on all ranks; nothing stays pending.

        Whoever flushes while others make more steps takes the results of those as well: rounds go
        on without waiting for it, and end when all ranks flush. Begun again, after a `TimeoutError`
        or by a caller that left the loop, it goes on where it was, and contributes nothing.

        Args:
          array: the last contribution (zeros do); then one result after the other, those that were
            missed first.
          timeout: seconds to wait for each.

        Yields:
          What is known about each result, while `array` holds it.

        Raises:
          InvalidArgumentError: the series has ended.
          TimeoutError: a rank neither goes on nor flushes; the message names it.
        """
        if self.ended:
            raise InvalidArgumentError(f"'{self.name}' was flushed already; begin another series")
        if not self._flushes:
            self._contribute(array, last=True)
            self._flushes = True
        while not self.ended:
            info = self.take(array, timeout)
            self.ended = self._recorder.ended = info.last
            yield info

    def digest(self, value: int) -> None:
        """Has a digest of this replica, after the results taken, compared with the others'."""
        self._partial.digest(self.rounds, count_of(value, "value", 0, 2**64 - 1))


def _recorded_quorum(
    sync: Replay, recorded: Recorded, elements: int, dtype: str, op: str
) -> Quorum:
    then = dict(recorded.options)
    array = {"elements": elements, "dtype": dtype, "op": op}
    for what, now in array.items():
        if then.pop(what) != now:
            raise InvalidArgumentError(
                f"'{sync.path}' was recorded with {what} {recorded.options[what]}; now it is {now}"
            )
    return Quorum(**then)


_Key = tuple[str, Group | None]  # not "|": Python 3.9
# Series behind allreduce(sync=), by name and group; None: it was begun with sync="full".
_series: dict[_Key, PartialReduction | None] = {}
_began_with: dict[_Key, str] = {}
# Of all series of a name, those that were flushed included.
_statistics: dict[_Key, RoundStatistics] = {}
# Results of a flush that has timed out.
_flushed: dict[_Key, list[np.ndarray]] = {}


def _forget() -> None:
    _series.clear()
    _began_with.clear()
    _statistics.clear()
    _flushed.clear()


forget_job.append(_forget)


def _series_of(
    name: str, sync: str | Quorum | Replay, array: Any, op: str, group: Group | None
) -> PartialReduction | None:
    key = (name, group)
    if key in _series:
        if _began_with[key] != repr(sync):
            raise InvalidArgumentError(
                f"the all-reduces of the series '{name}' began with sync={_began_with[key]}, now "
                f"sync is {sync!r}; flush() it first, or give this one another name"
            )
        return _series[key]
    with called("allgather", f"{name}.sync", group):
        partial = is_partial(sync, scope_of(group).size)
    if not partial:
        check_same(
            f"the partial all-reduce '{name}'",
            f"sync={sync!r}",
            name=f"{name}.sync",
            group=group,
        )
        series = None
    else:
        dtype = _core.dtype_of(array)
        elements = int(np.prod(shape_of(array)))
        statistics = _statistics.setdefault(key, RoundStatistics())
        series = PartialReduction(
            elements, dtype, sync=sync, op=op, name=name, statistics=statistics, group=group
        )
    _series[key] = series
    _began_with[key] = repr(sync)
    return series


def allreduce_in_rounds(
    array: Any,
    op: str,
    sync: str | Quorum | Replay,
    name: str | None,
    timeout: float | None,
    group: Group | None,
) -> bool:
    """`herring.allreduce` with `sync`; False: the mode is "full", which is an ordinary one."""
    series = _series_of(name_given(name) or "allreduce", sync, array, operator_of(op), group)
    if series is None:
        return False
    series.allreduce(array, timeout)
    return True


def flush(
    array: Any,
    *,
    name: str = "allreduce",
    timeout: float | None = None,
    group: Group | None = None,
) -> list[np.ndarray]:
    """Ends a series of `allreduce(..., sync=)` (collective), with a round of all that is pending.

    Ranks may have made different numbers of calls: who flushes takes the results of the others'
    rounds until all flush. So all have the same last result. The next all-reduce of the name begins
    another series.

    Args:
      array: this rank's last contribution; zeros do. Not changed.
      name: of the series.
      timeout: seconds to wait for each result.
      group: in which it was begun; None: all ranks.

    Returns:
      The results that this rank has not got yet, in order.

    Raises:
      InvalidArgumentError: there is no such series.
      TimeoutError: a rank neither goes on nor flushes. Called again it goes on waiting; `array` is
        not contributed again.
    """
    scope_of(group)
    key = (name_given(name) or "allreduce", group)
    series = _series.get(key)
    if series is None:
        raise InvalidArgumentError(
            f"the partial all-reduce '{name}' was flushed already, or began with sync='full'; "
            "there is nothing to flush"
            if key in _statistics or key in _series
            else f"no partial all-reduce named '{name}' was begun"
        )
    work = np.array(array, copy=True, order="C")
    results = _flushed.setdefault(key, [])
    for _ in series.flush(work, timeout):
        results.append(work.copy())
    del _series[key], _began_with[key], _flushed[key]
    return results


def partial_statistics(name: str = "allreduce", *, group: Group | None = None) -> RoundStatistics:
    """What happened in the rounds of `allreduce(..., sync=)` of a name; a flush forgets nothing.

    Raises:
      InvalidArgumentError: there was no such series.
    """
    scope_of(group)
    key = (name_given(name) or "allreduce", group)
    if key not in _statistics:
        raise InvalidArgumentError(f"no partial all-reduce named '{key[0]}' was begun")
    return _statistics[key]
