"""Recordings of partial all-reduces, and their exact repetition.

Two things determine the bits of a training in rounds: the contributors of each round, and the
number of results that each worker had taken before each of its contributions. A recording contains
both.
"""

from __future__ import annotations

import dataclasses
import json
import os
from array import array
from collections import Counter
from pathlib import Path
from typing import Any

from herring.arrays.arguments import shown
from herring.arrays.names import next_name
from herring.arrays.objects import allgather_plain, broadcast_plain
from herring.arrays.runtime import job
from herring.base.units import counted
from herring.errors import InvalidArgumentError, MismatchError

_FORMAT = "herring recording"
_VERSION = 1
_OPTIONS = {
    "elements": int,
    "dtype": str,
    "op": str,
    "q": int,
    "grace": float,
    "staleness": int,
    "divisor": str,
}


@dataclasses.dataclass(frozen=True)
class Replay:
    """Repeats a series recorded by `RoundStatistics.save`, for `sync=`.

    Each round has the recorded contributors. Each worker takes and contributes in the recorded
    order, however fast it is now, so a deterministic training gives the same bits. Rank 0 reads the
    file. Several series in a row (a `flush` ends each) are repeated in the recorded order.

    Attributes:
      path: The path of the recording, the same text on every rank.
    """

    path: str | Path

    def __post_init__(self) -> None:
        if not isinstance(self.path, (str, os.PathLike)):
            raise InvalidArgumentError(
                f"path is {shown(self.path)}; it must be the path of a recording"
            )

    def open(self, number: int, name: str) -> Recorded:
        """Returns what is recorded about a series (collective).

        Args:
          number: The number of the series in the recording, from 0.
          name: The name of the series now, for messages.

        Raises:
          InvalidArgumentError: The recording does not exist, is damaged, has another number of
            workers, or has fewer series.
        """
        found: Any = None
        if job().rank == 0:
            try:
                found = self._read(number, name)
            except InvalidArgumentError as error:
                found = str(error)
            except (RecursionError, MemoryError) as error:  # the other ranks wait for an answer
                found = f"'{self.path}' is not a readable recording: {error!r}"
        found = broadcast_plain(found, name=f"{name}.replay")
        if isinstance(found, str):
            raise InvalidArgumentError(found)
        return Recorded(str(self.path), name, job().rank, found)

    def _read(self, number: int, name: str) -> dict[str, Any]:
        recording = read(self.path)
        workers, series = recording["workers"], recording["series"]
        if workers != job().size:
            raise InvalidArgumentError(
                f"'{self.path}' was recorded with {counted(workers, 'worker')}; this job has "
                f"{job().size}"
            )
        if number >= len(series):
            raise InvalidArgumentError(
                f"'{self.path}' has {len(series)} series, each ended by a flush; '{name}' is "
                "one more"
            )
        return series[number]


class Recorded:
    """A recorded series that is being repeated, as one rank sees it.

    Attributes:
      options: The series' elements, dtype, op, q, grace, staleness and divisor.
    """

    def __init__(self, path: str, name: str, rank: int, series: dict[str, Any]) -> None:
        self.options = {key: series[key] for key in _OPTIONS}
        self._of = f"'{name}' replays '{path}', where rank {rank}"
        self._rounds = series["rounds"]
        self._steps = series["steps"][rank]
        self._places: list[tuple[int, int, int]] = []  # round, contributors, upto
        for number, contributors in enumerate(self._rounds):
            upto = dict(contributors).get(rank, 0)
            while len(self._places) < upto:
                self._places.append((number, len(contributors), upto))

    def taken_before(self, number: int) -> int | None:
        """Returns the results to take before contribution `number` (from 1), or None if unknown."""
        return self._steps[number - 1][0] if number <= len(self._steps) else None

    def place(self, number: int, taken: int, waits: bool, last: bool) -> tuple[int, int, int]:
        """Returns the round that counts a contribution.

        Returns:
          The round, its number of contributors, and the last of this rank's contributions in it.
        """
        if number >= len(self._steps) and not last:
            raise InvalidArgumentError(
                f"{self._of} made {counted(len(self._steps) - 1, 'contribution')} and flushed; "
                "more cannot be repeated"
            )
        if number != len(self._steps) and last:
            raise InvalidArgumentError(
                f"{self._of} made {counted(len(self._steps) - 1, 'contribution')} before it "
                f"flushed; now it flushes after {number - 1}"
            )
        then, waited = self._steps[number - 1]
        if then != taken:
            raise InvalidArgumentError(
                f"{self._of} made contribution {number} after {counted(then, 'result')}; now it "
                f"has taken {taken}"
            )
        if bool(waited) != waits:
            raise InvalidArgumentError(
                f"{self._of} made contribution {number} with waits={bool(waited)}; now it is "
                f"{waits}"
            )
        return self._places[number - 1]

    def check(self, info: Any) -> None:
        """Raises MismatchError unless a round has the recorded contributors."""
        found = [[one.rank, one.upto] for one in info.contributors]
        if found != self._rounds[info.round]:
            raise MismatchError(
                f"{self._of} took round {info.round} with the contributors (rank, contributions) "
                f"{self._rounds[info.round]}; now they are {found}"
            )


class Recorder:
    """Records what a replay of one series needs: 4 + 6 bytes per contributor in each round."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.ended = False
        self._members = array("H")  # ranks of the contributors, round after round
        self._added = array("I")  # contributions that each of them added
        self._counts = array("I")  # number of contributors, by round
        self._uptos: Counter[int] = Counter()  # contributions counted so far, by rank
        self._taken = array("I")
        self._waited = bytearray()

    def contributed(self, taken: int, waits: bool) -> None:
        """Records that this rank made a contribution after taking `taken` results."""
        self._taken.append(taken)
        self._waited.append(waits)

    def round(self, contributors: list[Any]) -> None:
        """Records the contributors of the next round."""
        self._counts.append(len(contributors))
        for one in contributors:
            self._members.append(one.rank)
            self._added.append(one.upto - self._uptos[one.rank])
            self._uptos[one.rank] = one.upto

    @property
    def steps(self) -> list[tuple[int, int]]:
        """This rank's results taken before each contribution, and whether it waited there."""
        return list(zip(self._taken, self._waited))

    @property
    def rounds(self) -> list[list[tuple[int, int]]]:
        """By round, the rank of each contributor and its contributions counted so far."""
        uptos: Counter[int] = Counter()
        pairs = iter(zip(self._members, self._added))
        rounds = []
        for count in self._counts:
            added = [next(pairs) for _ in range(count)]
            uptos.update(dict(added))
            rounds.append([(rank, uptos[rank]) for rank, _ in added])
        return rounds


def save(path: str | Path, recorders: list[Recorder], lost: list[Any]) -> None:
    """Writes a recording (collective; rank 0 writes); all ranks succeed or all fail.

    Raises:
      InvalidArgumentError: A series was not flushed or had no servers, a worker is lost, ranks have
        different numbers of series, or the file cannot be written.
    """
    if lost:
        raise InvalidArgumentError(
            f"rank {lost[0][0]} is gone: its steps are not known, so '{path}' cannot be recorded"
        )
    between = {one.options["algorithm"] for one in recorders} - {"herring"}
    if between:
        raise InvalidArgumentError(
            f"'{path}' cannot be recorded: a series has algorithm {sorted(between)[0]!r}, and a "
            "replay goes through the servers, whose sums have other bits"
        )
    rank = job().rank
    mine = [(one.steps, one.ended) for one in recorders]
    everyone = allgather_plain(mine, name=next_name("recording"))
    numbers = [len(of_rank) for of_rank in everyone]
    if len(set(numbers)) > 1:
        raise InvalidArgumentError(f"ranks have {numbers} series to be saved to '{path}'")
    series = []
    for number, recorder in enumerate(recorders):
        steps, ended = zip(*(of_rank[number] for of_rank in everyone))
        if not all(ended):
            raise InvalidArgumentError(
                f"series {number} has not ended on rank {ended.index(False)}: flush() it "
                f"before saving it to '{path}'"
            )
        options = {key: value for key, value in recorder.options.items() if key != "algorithm"}
        series.append({**options, "rounds": recorder.rounds, "steps": steps})
    problem = ""
    if rank == 0:
        recording = {
            "format": _FORMAT,
            "version": _VERSION,
            "workers": job().size,
            "series": series,
        }
        part = Path(f"{path}.part")
        try:
            part.write_text(json.dumps(recording, separators=(",", ":")) + "\n")
            part.replace(path)  # the file appears whole or not at all
        except OSError as error:
            problem = str(error)
    problem = broadcast_plain(problem, name=next_name("recording.written"))
    if problem:
        raise InvalidArgumentError(f"rank 0 cannot write '{path}': {problem}")


def read(path: str | Path) -> dict[str, Any]:
    """Returns a recording after checking it.

    Raises:
      InvalidArgumentError: The file cannot be read or is not a sound recording; the message says
        what is wrong.
    """
    try:
        recording = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise InvalidArgumentError(f"'{path}' is not a readable recording: {error}") from None
    try:
        if recording["format"] != _FORMAT or recording["version"] != _VERSION:
            raise _Damaged(
                f"it is {recording['format']!r} version {recording['version']}; this release reads "
                f"{_FORMAT!r} version {_VERSION}"
            )
        workers = recording["workers"]
        for number, series in enumerate(recording["series"]):
            _check(series, workers, f"series {number}")
    except _Damaged as error:
        raise InvalidArgumentError(f"'{path}' cannot be replayed: {error}") from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidArgumentError(f"'{path}' cannot be replayed: {error!r} is wrong") from None
    return recording


class _Damaged(Exception):
    pass


def _check(series: dict[str, Any], workers: int, where: str) -> None:
    """Checks what holds for every recording; after the check no worker can wait forever."""
    for key, kind in _OPTIONS.items():
        if not isinstance(series[key], kind) and (kind, type(series[key])) != (float, int):
            raise _Damaged(f"{where} has {key} {series[key]!r}")
    steps, included = series["steps"], [0] * workers
    if len(steps) != workers:
        raise _Damaged(f"{where} has steps of {counted(len(steps), 'worker')}, not of {workers}")
    for number, contributors in enumerate(series["rounds"]):
        ranks = [rank for rank, _ in contributors]
        if not ranks or ranks != sorted(set(ranks)) or not 0 <= ranks[0] <= ranks[-1] < workers:
            raise _Damaged(f"{where}, round {number} has contributors {ranks} of {workers} workers")
        for rank, upto in contributors:
            if not included[rank] < upto <= len(steps[rank]):
                raise _Damaged(
                    f"{where}, round {number} counts contribution {upto} of rank {rank}, which "
                    f"made {len(steps[rank])}, {included[rank]} of them counted before"
                )
            included[rank] = upto
            taken, _ = steps[rank][upto - 1]
            if taken > number:
                raise _Damaged(
                    f"{where}, round {number} counts contribution {upto} of rank {rank}, which was "
                    f"made after {counted(taken, 'result')}"
                )
    for rank, made in enumerate(steps):
        if included[rank] != len(made) or not made:
            raise _Damaged(f"{where} counts {included[rank]} of {len(made)} steps of rank {rank}")
        due = 0
        for number, (taken, waited) in enumerate(made, 1):
            if not isinstance(taken, int) or taken < due:
                raise _Damaged(
                    f"{where}, contribution {number} of rank {rank} was made after {taken} "
                    f"results, but at least {due} must come before it"
                )
            due = taken + bool(waited)
