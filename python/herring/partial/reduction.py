"""Partial all-reduces: series of rounds over one array."""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

from herring import _core
from herring.arrays.arguments import (
    Operator,
    Timeout,
    boolean_of,
    count_of,
    operator_of,
    seconds_of,
    shown,
    text_of,
)
from herring.arrays.calls import CallOptions, called, named
from herring.arrays.collectives import shape_of
from herring.arrays.groups import Group, scope_of
from herring.arrays.objects import allgather_plain, require_same
from herring.arrays.operations import submit
from herring.arrays.runtime import forget_job, job
from herring.base.units import counted
from herring.errors import InvalidArgumentError
from herring.partial.quorum import Quorum, is_partial, quorum_of
from herring.partial.replay import Recorded, Replay
from herring.partial.statistics import RoundInfo, RoundStatistics

ALGORITHMS = ("herring", "server", "tree", "ring", "butterfly", "doubling")
RESULTS = ("every", "latest")
_NO_DIGEST = "with results='latest' ranks take different results, so digests are not compared"


class PartialReduction:
    """A series of rounds over one array (collective: same arguments on every rank).

    Each worker contributes arrays and takes the results of all rounds in order. A contribution that
    is too late for a round is in the next round that closes.

    Args:
      elements: The number of elements of the array.
      dtype: The name of the array's dtype.
      sync: "solo", "majority", a `Quorum` or a `Replay`.
      op: "average" (floats only) or "sum".
      name: Identifies the series across ranks; None numbers the series.
      statistics: Statistics of earlier series, which this series continues. A `Replay` then repeats
        the next series in its recording. None begins new statistics.
      group: The group that takes part; None means all ranks. A `Replay` takes no group.
      algorithm: "herring": servers sum, and one of them counts who has come and closes the rounds.
        "doubling", "butterfly", "ring", "tree" or "server": the workers do both, by messages
        between them, for "solo" and "majority". See docs/partial.md.
      results: "every": each result is taken, in order. "latest": `take` drops results that a newer
        one has followed already, as the paper's receive buffer does (section 5). Ranks then take
        different results.

    Attributes:
      op: The name of the operator.
      ended: Whether the series was flushed.
      owes: Whether this rank must take a result before it contributes again. This is so after a
        contribution that waits, and stays so if `take` raised `TimeoutError`.

    Raises:
      InvalidArgumentError: A value is out of range, or `op` is not "average" or "sum".
      MismatchError: Ranks gave different arguments; the message lists them.
    """

    def __init__(
        self,
        elements: int,
        dtype: str,
        *,
        sync: str | Quorum | Replay,
        op: Operator = "average",
        name: str | None = None,
        statistics: RoundStatistics | None = None,
        group: Group | None = None,
        algorithm: str = "herring",
        results: str = "every",
    ) -> None:
        self.name = named(name, "partial", group)
        running, scope = job(), scope_of(group)
        self.statistics = RoundStatistics() if statistics is None else statistics
        self._replay: Recorded | None = None
        with called("allgather", f"{self.name}.sync", group):
            elements = count_of(elements, "elements")
            text_of(dtype, "dtype")
            self.op = op = operator_of(op)
            if isinstance(sync, Replay) and group is not None:
                raise InvalidArgumentError("a Replay covers all ranks and takes no group")
            if not is_partial(sync, scope.size):
                raise InvalidArgumentError(
                    "a PartialReduction is partial: sync='full' is allreduce()"
                )
            text_of(algorithm, "the algorithm", ALGORITHMS)
            if algorithm != "herring" and sync not in ("solo", "majority"):
                raise InvalidArgumentError(
                    f"algorithm={algorithm!r} takes sync='solo' or 'majority', not {sync!r}: "
                    "nobody counts who has come; use algorithm='herring'"
                )
            check_results(results, sync)
            if not isinstance(sync, Replay):
                quorum = quorum_of(sync, scope.size)
        text = mode_text(sync, algorithm, results)
        text += f", {counted(elements, 'element')} of {dtype}, op {op}"
        number = agree(self.name, text, group)
        if isinstance(sync, Replay):
            self._replay = sync.open(self.statistics.series, self.name)
            quorum = _recorded_quorum(sync, self._replay, elements, dtype, op)
            quorum.check(running.size)
        assert quorum is not None  # sync is not "full"
        if algorithm != "herring":
            _meet(self.name, group)
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
            number,
            scope.handle,
            algorithm,
        )
        self._recorder = self.statistics.begin(
            {"elements": elements, "dtype": dtype, "op": op, **dataclasses.asdict(quorum)}
            | {"grace": quorum.seconds, "algorithm": algorithm},
            in_group=group is not None,
        )
        self._array = elements, dtype
        self._latest = results == "latest"
        self._flushes = False
        self.ended = False
        self.owes = False

    @property
    def ready(self) -> int:
        """The number of results that `take` would return at once.

        In a replay, it is the number of results that the recorded run took before the next
        contribution; some of these may still be on their way.
        """
        if self._replay is not None:
            recorded = self._replay.taken_before(self._partial.produced + 1)
            if recorded is not None:
                return max(recorded - self._partial.taken, 0)
        return self._partial.ready

    @property
    def rounds(self) -> int:
        """The number of results taken."""
        return self._partial.taken

    @property
    def contributions(self) -> tuple[int, int]:
        """The number of contributions of this worker, and how many of them are in results."""
        return self._partial.produced, self._partial.counted

    @property
    def memory(self) -> int:
        """The number of arrays allocated for contributions and results."""
        return self._partial.blocks

    def contribute(self, array: Any, *, waits: bool = True, last: bool = False) -> None:
        """Adds an array to the round that closes next; returns at once.

        Args:
          array: The contribution, which is copied.
          waits: Whether the worker takes one more result before it goes on. Only waiting workers
            close rounds. Pass False after taking missed results, if the worker goes on at once.
          last: Whether this is the worker's last contribution. The worker then takes results until
            one has `RoundInfo.last`, which comes after the last contribution of every worker.

        Raises:
          InvalidArgumentError: The array does not fit, a result was not taken, or the recorded run
            did something else at this point.
          HerringError: The job failed.
        """
        self._contribute(
            array, boolean_of(waits, "waits"), boolean_of(last, "last"), caller_waits=False
        )

    def _contribute(
        self, array: Any, waits: bool = True, last: bool = False, caller_waits: bool = True
    ) -> None:
        """Contributes; `caller_waits` says that the caller takes a result next and sends meanwhile.

        The waiting caller's thread then does the sending itself.
        """
        taken = self._partial.taken
        place = (0, 0, 0)
        if self._replay is not None:
            place = self._replay.place(self._partial.produced + 1, taken, waits, last)
        self._partial.contribute(array, waits, last, caller_waits, *place)
        self._recorder.contributed(taken, waits)
        self.owes = waits

    def _require_target(self, array: Any) -> None:
        """Raises InvalidArgumentError unless results of the series can be written to `array`."""
        require_writable(array)
        if (math.prod(shape_of(array)), _core.dtype_of(array)) != self._array:
            elements, dtype = self._array
            raise InvalidArgumentError(
                f"'{self.name}' is over {counted(elements, 'element')} of {dtype}, but the array "
                f"for its results has {math.prod(shape_of(array))} of {_core.dtype_of(array)}"
            )

    def take(self, array: Any, timeout: Timeout = None) -> RoundInfo:
        """Waits for the next round's result and writes it to `array`.

        With results="latest", it is the newest result that is there.

        Args:
          array: A writable array with the series' dtype and number of elements.
          timeout: Seconds to wait here; None means to wait until the round's deadline.

        Returns:
          What is known about the round, such as its contributors.

        Raises:
          TimeoutError: The round did not end in time. Another call goes on waiting for it.
          PeerLostError: A process is lost without which the job cannot go on.
          MismatchError: A replayed round has other contributors than the recorded round.
        """
        info = self._partial.take(array, seconds_of(timeout))
        self.owes = False
        if self._replay is not None:
            self._replay.check(info)
        self.statistics.add(info)
        while self._latest and self._partial.ready:
            info = self._partial.take(array)
            self.statistics.add(info)
        return info

    def allreduce(self, array: Any, timeout: Timeout = None) -> RoundInfo:
        """Contributes `array` and writes the next round's result to it.

        Args:
          array: A writable array with the series' dtype and number of elements.
          timeout: Seconds to wait for the result; None means to wait until the round's deadline.

        Returns:
          What is known about the round, such as its contributors.

        Raises:
          InvalidArgumentError: The array does not fit or is read-only. It was not contributed.
          TimeoutError: The round did not end in time. The array was contributed; `take` the result
            before the next contribution.
          PeerLostError: A process is lost without which the job cannot go on.
        """
        require_writable(array)
        seconds_of(timeout)
        self._contribute(array)
        return self.take(array, timeout)

    def step(self, array: Any, result: Any, timeout: Timeout = None) -> Iterator[RoundInfo]:
        """Does a step of eager SGD: takes the missed results, then contributes.

        If the worker has missed rounds, their results come first. The contribution then goes to the
        round that closes next, and nothing is waited for. Otherwise the worker waits for the next
        round. A caller that leaves the loop early has contributed as well.

        Args:
          array: The contribution.
          result: A writable array with the series' dtype and number of elements, which holds one
            result after the other.
          timeout: Seconds to wait for the next round; None means to wait until its deadline.

        Yields:
          What is known about each round, while `result` holds its result.

        Raises:
          InvalidArgumentError: An array does not fit, or `result` is read-only. Nothing was
            contributed.
          TimeoutError: The round did not end in time. The array was contributed, and the next step
            yields the result first; it was not if the result of an earlier time-out is still owed
            (`contributions` tells).
        """
        self._require_target(result)
        seconds_of(timeout)
        contributed = missed = False
        try:
            while self.owes or self.ready:
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

    def begin_flush(self, array: Any) -> None:
        """Contributes for the last time and returns at once; `flush` then gives the results.

        A rank with several series begins to flush all of them before it takes results. Another call
        does nothing.

        Args:
          array: The last contribution, which may be zeros. It is copied.
        """
        if not self._flushes:
            self._contribute(array, last=True)
            self._flushes = True

    def flush(self, array: Any, timeout: Timeout = None) -> Iterator[RoundInfo]:
        """Ends the series with a last round that is the same on all ranks; nothing stays pending.

        A rank that flushes while other ranks make more steps takes the results of those steps too.
        Rounds no longer wait for this rank, and end when all ranks flush. After a `TimeoutError`,
        or if the caller left the loop, a new call goes on where the last one stopped and
        contributes nothing.

        Args:
          array: The last contribution, which may be zeros. It then holds one result after the
            other, beginning with those that were missed.
          timeout: Seconds to wait for each result; None means to wait until its deadline.

        Yields:
          What is known about each round, while `array` holds its result.

        Raises:
          InvalidArgumentError: The series has ended.
          TimeoutError: A rank neither goes on nor flushes; the message names it.
        """
        if self.ended:
            raise InvalidArgumentError(f"'{self.name}' was flushed already; begin another series")
        require_writable(array)
        seconds_of(timeout)
        self.begin_flush(array)
        while not self.ended:
            info = self.take(array, timeout)
            self.ended = self._recorder.ended = info.last
            yield info

    def digest(self, value: int) -> None:
        """Compares a digest of this replica, after the results taken so far, with the others'.

        Raises:
          InvalidArgumentError: With results="latest" replicas differ.
        """
        if self._latest:
            raise InvalidArgumentError(f"'{self.name}': {_NO_DIGEST}")
        self._partial.digest(self.rounds, count_of(value, "value", 0, 2**64 - 1))


def wants_rounds(sync: str | Quorum | Replay, algorithm: str, group: Group | None) -> bool:
    """Returns whether `sync` means rounds that do not wait for all workers, for wrappers.

    Raises:
      InvalidArgumentError: `sync` is unknown, or another argument has no meaning together with it.
    """
    text_of(algorithm, "the algorithm", ALGORITHMS)
    if not is_partial(sync, scope_of(group).size):
        if algorithm != "herring":
            raise InvalidArgumentError(
                f"algorithm={shown(algorithm)} is for sync='solo' and 'majority'; with sync='full' "
                "gradients go through the servers (algorithm='herring')"
            )
        return False
    if isinstance(sync, Replay) and group is not None:
        raise InvalidArgumentError(
            f"sync={sync!r} takes no group: a recording covers all ranks; group= allows "
            "'full', 'solo', 'majority' and herring.Quorum"
        )
    return True


def check_results(results: str, sync: str | Quorum | Replay, digest_every: int = 0) -> None:
    """Raises InvalidArgumentError if `results` is unknown, or has no meaning with the rest."""
    text_of(results, "results", RESULTS)
    if results == "latest" and isinstance(sync, Replay):
        raise InvalidArgumentError(
            "a Replay takes every result, as the recorded run did; results must be 'every'"
        )
    if results == "latest" and digest_every:
        raise InvalidArgumentError(f"digest_every is {digest_every}; {_NO_DIGEST}: it must be 0")


def _meet(name: str, group: Group | None) -> None:
    """Connects the workers of a group with those to which they signal (collective)."""
    call = CallOptions(f"{name}.meet", None, group)
    submit("allreduce", np.zeros(1, np.int32), call, op="sum", algorithm="doubling").wait()


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


def require_writable(array: Any) -> None:
    """Raises InvalidArgumentError if `array` is read-only, before anything is contributed."""
    try:
        read_only = memoryview(array).readonly
    except (TypeError, ValueError, BufferError):
        return  # an array that has only DLPack; the core checks the rest
    if read_only:
        raise InvalidArgumentError("the array is read-only, but results are written in place")


# The largest number of a series that this rank has begun.
_latest_number = 0
_numbers_lock = threading.Lock()


def agree(name: str, described: str, group: Group | None) -> int:
    """Checks that all ranks begin the same series, and returns a number for it (collective).

    The number is the same on all ranks, and larger than that of any earlier series of this name.

    Raises:
      MismatchError: Ranks gave different descriptions; the message lists them.
    """
    global _latest_number
    given = allgather_plain([described, _latest_number], name=f"{name}.sync", group=group)
    require_same(f"the partial all-reduce '{name}'", [text for text, _ in given], group)
    number: int = 1 + max(latest for _, latest in given)
    with _numbers_lock:
        _latest_number = max(_latest_number, number)
    return number


def _forget() -> None:
    global _latest_number
    _latest_number = 0


forget_job.append(_forget)


def mode_text(sync: str | Quorum | Replay, algorithm: str, results: str = "every") -> str:
    """Returns the mode of a series in words, of which the defaults are left out."""
    text_of(algorithm, "the algorithm")
    text = f"sync={sync!r}" + (f", algorithm={algorithm!r}" if algorithm != "herring" else "")
    return text + (f", results={results!r}" if results != "every" else "")
