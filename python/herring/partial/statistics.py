"""Statistics of the rounds of a partial all-reduce."""

from __future__ import annotations

from array import array
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from herring import _core
from herring.base.pictures import subplots
from herring.base.units import counted
from herring.errors import InvalidArgumentError
from herring.partial.replay import Recorder
from herring.partial.replay import save as save_recording

RoundInfo = _core.RoundInfo


class RoundStatistics:
    """Records which workers were in which round, which were late, and by how much.

    Attributes:
      rounds: The numbers of contributors and of active workers of each round.
      staleness: The number of contributions by the number of rounds that they were late.
      late: By rank, the seconds by which the worker missed rounds.
      waited: By rank, the seconds between the contribution and the end of the round.
      queued: The seconds that results were here before they were taken.
      lost: The rank, the contributions counted and the contributions announced of workers that
        died or left.
    """

    _BATCH = 256

    def __init__(self) -> None:
        self._rounds: list[tuple[int, int]] = []
        self._staleness: Counter[int] = Counter()
        self._late: dict[int, array[float]] = {}
        self._waited: dict[int, array[float]] = {}
        self._queued = array("f")
        self._lost: list[tuple[int, int, int]] = []
        self._recorders: list[Recorder] = []
        self._fresh: list[RoundInfo] = []
        self._in_group = False

    @property
    def series(self) -> int:
        """The number of series in these statistics; each `flush` ends a series."""
        return len(self._recorders)

    def begin(self, options: dict[str, Any], in_group: bool = False) -> Recorder:
        """Begins another series; `in_group` says that only some of the job's ranks take part."""
        self._digest()
        self._in_group |= in_group
        self._recorders.append(Recorder(options))
        return self._recorders[-1]

    def save(self, path: str | Path) -> None:
        """Writes who was in which round, for `herring.Replay` (collective; rank 0 writes the file).

        Every rank calls it after its last `flush`, with statistics of the same series.

        Args:
          path: The file to write.

        Raises:
          InvalidArgumentError: A series is not flushed or is a group's, a worker is lost, ranks
            have different numbers of series, or the file cannot be written. Every rank raises it.
        """
        if self._in_group:
            raise InvalidArgumentError(
                f"a recording covers all ranks: a group's series cannot be saved to '{path}'"
            )
        self._digest()
        save_recording(path, self._recorders, self._lost)

    def add(self, info: RoundInfo) -> None:
        """Stores a round's information for later evaluation, so that steps stay short."""
        self._fresh.append(info)
        if len(self._fresh) >= self._BATCH:
            self._digest()

    def _digest(self) -> None:
        for info in self._fresh:
            contributors = info.contributors
            if self._recorders:
                self._recorders[-1].round(contributors)
            self._rounds.append((len(contributors), info.active))
            self._queued.append(info.queued)
            for one in contributors:
                self._staleness[one.staleness] += 1
                waited = one.waited
                if waited < 0:
                    self._late.setdefault(one.rank, array("f")).append(-waited)
                else:
                    self._waited.setdefault(one.rank, array("f")).append(waited)
        if self._fresh:
            self._lost = self._fresh[-1].lost
        self._fresh.clear()

    def __getattr__(self, name: str) -> Any:
        if name not in ("rounds", "staleness", "late", "waited", "queued", "lost"):
            raise AttributeError(f"RoundStatistics has no {name!r}")
        self._digest()
        return getattr(self, f"_{name}")

    def summary(self) -> str:
        """Returns a few lines: rounds, contributors, staleness, and the stragglers, worst first."""
        if not self.rounds:
            return "no rounds"
        counts = np.array(self.rounds)
        lines = [
            f"{counted(len(counts), 'round')}; contributors {counts[:, 0].mean():.1f} on average "
            f"({counts[:, 0].min()} to {counts[:, 0].max()}), waiting for the round "
            f"{counts[:, 1].mean():.1f} ({counts[:, 1].min()} to {counts[:, 1].max()})",
            "staleness: "
            + ", ".join(f"{counted(k, 'round')}: {n}" for k, n in sorted(self.staleness.items())),
        ]
        for rank, times in sorted(self.late.items(), key=lambda item: -sum(item[1])):
            lines.append(
                f"rank {rank} was late {counted(len(times), 'time')}, by "
                f"{np.mean(times) * 1e3:.1f} ms on average, {np.max(times) * 1e3:.1f} ms at most"
            )
        for rank, upto, announced in self.lost:
            lines.append(
                f"rank {rank} is gone: {counted(upto, 'contribution')} counted, {announced - upto} "
                "announced and not counted"
            )
        return "\n".join(lines)

    def plot(self, path: str | Path) -> None:
        """Draws contributors per round, the staleness histogram and the lateness per rank.

        Args:
          path: The image file to write.

        Raises:
          ConfigurationError: matplotlib is not installed.
        """
        figure, (top, middle, bottom) = subplots(3, (8, 9))
        counts = np.array(self.rounds or [(0, 0)])
        top.step(range(len(counts)), counts[:, 0], where="mid", label="contributors")
        top.step(range(len(counts)), counts[:, 1], where="mid", label="waiting")
        top.set(xlabel="round", ylabel="workers", ylim=(0, None))
        top.legend()
        middle.bar(list(self.staleness), list(self.staleness.values()))
        middle.set(xlabel="staleness (rounds)", ylabel="contributions")
        ranks = sorted(self.late)
        bottom.bar(ranks, [1e3 * float(np.mean(self.late[rank])) for rank in ranks])
        bottom.set(xlabel="rank", ylabel="mean lateness (ms)")
        figure.savefig(path)
