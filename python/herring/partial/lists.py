"""Rounds over lists of gradients in host memory, for the adapters of frameworks.

A compiled step asks for one result after the other and applies each, because it cannot know how
many rounds it has missed. So rounds are not given by an iterator, but by calls from outside.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from herring.arrays.arguments import Operator, count_of
from herring.arrays.calls import name_of_next
from herring.arrays.gradients import Source, agree, check_operator, require_sources
from herring.arrays.groups import Group
from herring.arrays.runtime import is_elastic, job, require_running
from herring.arrays.wire import WireDType
from herring.errors import InvalidArgumentError
from herring.partial.quorum import Quorum
from herring.partial.reduction import PartialReduction, wants_rounds
from herring.partial.replay import Replay
from herring.partial.statistics import RoundInfo, RoundStatistics

# What `PartialLists.begin` and `advance` return.
NO_RESULT, RESULT, RESULT_BEFORE_DIGEST = range(3)


def wants_lists(
    sync: str | Quorum | Replay,
    *,
    algorithm: str = "herring",
    wire_dtype: WireDType | None = None,
    buffer_bytes: int = 0,
    sparse: str = "densify",
    group: Group | None = None,
) -> bool:
    """Returns whether `sync` means rounds that do not wait for all workers.

    Raises:
      InvalidArgumentError: `sync` is unknown, or another option has no meaning together with it.
    """
    if not wants_rounds(sync, algorithm, group):
        return False
    refused = {
        f"wire_dtype={wire_dtype!r}; None is allowed (gradients travel as they are)": (
            wire_dtype is not None
        ),
        f"buffer_bytes={buffer_bytes!r}; 0 is allowed, because gradients are one array": (
            buffer_bytes != 0
        ),
        f"sparse={sparse!r}; 'densify' is allowed, because results are dense": sparse != "densify",
        "an elastic job; there all ranks make and commit equally many steps": is_elastic(),
    }
    for what, given in refused.items():
        if given:
            raise InvalidArgumentError(f"sync={sync!r} does not take {what}")
    return True


class GradientList(NamedTuple):
    """A list of variables, and the array that has the gradients of those that are used.

    Attributes:
      used: places in `sources` of the variables that have a gradient on some rank, ascending.
    """

    sources: tuple[Source, ...]
    used: list[int]
    parts: dict[int, slice]
    given: np.ndarray
    mean: np.ndarray

    def put(self, places: Sequence[int], arrays: Sequence[Any]) -> None:
        """Writes gradients to `given`; variables without one get zeros."""
        self.given[:] = 0
        for place, array in zip(places, arrays):
            self.given[self.parts[place]] = _flat(array)
        self.given[-1] = 1  # a worker with gradients

    def get(self, arrays: Sequence[Any]) -> None:
        """Writes the result in `mean` to one array for each of `used`."""
        for place, array in zip(self.used, arrays):
            _flat(array)[:] = self.mean[self.parts[place]]


def _flat(array: Any) -> np.ndarray:
    """Returns a contiguous array in one dimension; complex numbers as pairs."""
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(flat.real.dtype) if flat.dtype.kind == "c" else flat


class PartialLists:
    """Contributes lists of gradients to rounds, and gives the results of all rounds in order.

    Every rank applies all results, so replicas never differ. One list at a time has a series of
    rounds; a `flush` ends it, and the next step begins another one with all ranks.

    A rank without a gradient that others have contributes zeros. Results are in float64 if a
    gradient is, else in float32. One more number has the share of workers that had gradients. It is
    zero in the last round if nobody had anything left, and then no step is made.

    Attributes:
      name: The prefix of the operations' names.
      rounds: The number of rounds applied; equal numbers mean equal parameters.
      statistics: Which workers were in which round or late.
      info: What is known about the latest round.
    """

    def __init__(
        self,
        name: str,
        *,
        sync: str | Quorum | Replay,
        op: Operator = "average",
        algorithm: str = "herring",
        digest_every: int = 100,
        group: Group | None = None,
        numbered: bool = False,
    ) -> None:
        """Creates it; nothing is exchanged before the first step.

        Args:
          name: The prefix of the operations' names, the same on all ranks.
          op: "average" or "sum".
          algorithm: As for `PartialReduction`.
          digest_every: The number of rounds after which ranks compare a digest of the parameters; 0
            means never.
          numbered: Whether `name` is the same for several of these, which get numbers.
        """
        check_operator(op)
        self._digest_every = count_of(digest_every, "digest_every")
        self._job = job()
        self.name = name_of_next(name, group) if numbered else name
        self.rounds = 0
        self.statistics = RoundStatistics()
        self.info: RoundInfo | None = None
        self._options: dict[str, Any] = {
            "sync": sync,
            "op": op,
            "algorithm": algorithm,
            "group": group,
        }
        self._lists: dict[tuple[Source, ...], GradientList] = {}
        self._list: GradientList | None = None  # whose series is under way
        self._series: PartialReduction | None = None
        self._generation = 0
        self._results: Iterator[RoundInfo] | None = None
        self._error: BaseException | None = None
        self._shown = False  # whether the caller has a result that is not counted yet

    @property
    def open(self) -> bool:
        """Whether a series is under way: it was begun, and has not been flushed."""
        return self._series is not None

    def plan(self, sources: Sequence[Source], present: Sequence[int]) -> GradientList:
        """Returns the list of these variables (collective when it is first seen).

        Args:
          present: Places in `sources` of the variables that have a gradient on this rank.

        Raises:
          InvalidArgumentError: A gradient cannot be averaged, or had none on any rank when the list
            was first seen; or the series of another list is under way.
          MismatchError: The lists or options differ between ranks.
        """
        require_running(self._job, self.name)
        key = tuple(sources)
        if self._list is not None and self._list.sources != key:
            raise InvalidArgumentError(
                f"{self.name}: the list of variables has changed while a series of rounds is under "
                f"way ({len(self._list.sources)} variables before, {len(key)} now): flush() on all "
                "ranks first"
            )
        found = self._lists.get(key) or self._planned(key, present)
        if found.used:  # otherwise all ranks flush without a step, and agree again in the next one
            self._lists[key] = found
        if more := [place for place in present if place not in found.parts]:
            raise InvalidArgumentError(
                f"{self.name}: there is a gradient for {key[more[0]].name!r}, which had none on "
                "any rank in the first step; use all variables in the first step, or wrap the "
                "optimizer again where some are unfrozen"
            )
        return found

    def _planned(self, sources: tuple[Source, ...], present: Sequence[int]) -> GradientList:
        require_sources(sources, self.name)
        group, name = self._options["group"], f"{self.name}.{len(self._lists)}"
        options = [f"{key}={self._options[key]!r}" for key in ("sync", "op", "algorithm")]
        options.append(f"digest_every={self._digest_every}")
        used = agree(sources, present, name=name, group=group, options=" ".join(options))
        used.sort()
        parts, start = {}, 0
        for place in used:
            parts[place] = slice(start, start + sources[place].elements)
            start += sources[place].elements
        double = any(sources[place].dtype in ("float64", "complex128") for place in used)
        given = np.zeros(start + 1, np.float64 if double else np.float32)
        return GradientList(sources, used, parts, given, np.zeros_like(given))

    def _enter(self, chosen: GradientList) -> PartialReduction:
        """Returns the list's series; begins one if none is under way (collective then)."""
        self._leave()
        if self._series is None:
            self._series = PartialReduction(
                len(chosen.given),
                chosen.given.dtype.name,
                name=f"{self.name}.rounds{self._generation}",
                statistics=self.statistics,
                **self._options,
            )
            self._list = chosen
            self._generation += 1
        return self._series

    def _leave(self) -> None:
        """Ends a step that was interrupted; what it has not contributed yet is contributed."""
        self._count()
        results, self._results = self._results, None
        if results is not None:
            results.close()  # type: ignore[attr-defined]

    def _count(self) -> None:
        self.rounds += self._shown
        self._shown = False

    def begin(
        self,
        chosen: GradientList,
        places: Sequence[int],
        arrays: Sequence[Any],
        into: Sequence[Any],
    ) -> int:
        """Contributes the gradients of a step; waits for the first result unless some were missed.

        Args:
          chosen: What `plan` returned.
          places: The places of this rank's gradients in the list's sources.
          arrays: Host arrays with the gradients.
          into: A writable array for each of the list's `used`, which gets the first result. It may
            be one of `arrays`.

        Returns:
          `NO_RESULT`: the step is complete. `RESULT`: apply the result, then call `advance`.
          `RESULT_BEFORE_DIGEST`: likewise, and call `digest` in between.
        """
        series = self._enter(chosen)
        chosen.put(places, arrays)
        self._results = series.step(chosen.given, chosen.mean)
        return self.advance(into)

    def begin_flush(self, chosen: GradientList, into: Sequence[Any]) -> int:
        """Ends the series (collective); returns and goes on as `begin` does.

        After an error another call goes on where this one stopped.
        """
        series = self._enter(chosen)
        chosen.mean[:] = 0
        self._results = series.flush(chosen.mean)
        return self.advance(into)

    def advance(self, into: Sequence[Any]) -> int:
        """Writes the next result to arrays after the last one was applied; returns as `begin`."""
        self._count()
        chosen, series, results = self._list, self._series, self._results
        if chosen is None or series is None or results is None:
            return NO_RESULT
        try:
            for self.info in results:
                self._shown = True
                if series.ended:
                    self._series = self._list = None
                if chosen.mean[-1] > 0:
                    chosen.get(into)
                    return self._kind_of_result()
                self._count()
        except BaseException:
            self._results = None
            raise
        self._results = None
        return NO_RESULT

    def _kind_of_result(self) -> int:
        every = self._digest_every
        due = every and self._series is not None and (self.rounds + 1) % every == 0
        return RESULT_BEFORE_DIGEST if due else RESULT

    def digest(self, arrays: Sequence[Any]) -> None:
        """Compares a digest of the parameters, after the latest result, with the other ranks'."""
        if self._series is not None:
            self._series.digest(digest_of(arrays))

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Notes an error in what a program calls, because frameworks make another error of it."""
        try:
            yield
        except BaseException as error:
            self._error = error
            raise

    @contextlib.contextmanager
    def outside(self) -> Iterator[None]:
        """Raises the error that was noted inside of a program, if the program fails."""
        self._error = None
        try:
            yield
        except Exception as error:
            noted, self._error = self._error, None
            if noted is None:
                raise
            raise noted from error

    def room(self, chosen: GradientList) -> list[np.ndarray]:
        """Returns new arrays for results, in dtypes of NumPy: 16-bit floats become float32."""
        halves = ("float16", "bfloat16")
        sources = [chosen.sources[place] for place in chosen.used]
        return [
            np.empty(one.shape, "float32" if one.dtype in halves else one.dtype) for one in sources
        ]


def spread(chosen: GradientList, results: Sequence[Any]) -> list[Any]:
    """Returns a result for each variable of the list; None for those that no rank uses."""
    found: list[Any] = [None] * len(chosen.sources)
    for place, result in zip(chosen.used, results):
        found[place] = result
    return found


def digest_of(arrays: Iterable[Any]) -> int:
    """Returns a 64-bit hash of arrays in host memory."""
    state = hashlib.blake2b(digest_size=8)
    for array in arrays:
        state.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return int.from_bytes(state.digest(), "little")


class Counts(NamedTuple):
    """How many rounds, contributors and missed rounds statistics have so far."""

    rounds: int
    contributors: int
    contributions: int
    late: int


def counts_of(statistics: RoundStatistics) -> Counts:
    """Returns what statistics have so far, for `means_since`."""
    staleness = statistics.staleness
    return Counts(
        len(statistics.rounds),
        sum(count for count, _ in statistics.rounds),
        sum(staleness.values()),
        sum(late * times for late, times in staleness.items()),
    )


def means_since(statistics: RoundStatistics, before: Counts) -> dict[str, float]:
    """Returns means of the rounds since `before`, for the logs of a training loop."""
    now = counts_of(statistics)
    rounds, contributors, contributions, late = (a - b for a, b in zip(now, before))
    if not rounds:
        return {}
    return {
        "herring/rounds": float(rounds),
        "herring/contributors": contributors / rounds,
        "herring/staleness": late / max(contributions, 1),
    }
