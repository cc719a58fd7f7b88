"""The condition under which a round of a partial all-reduce ends."""

from __future__ import annotations

import dataclasses

from herring.arrays.arguments import number_of, seconds_of, shown, text_of
from herring.errors import InvalidArgumentError
from herring.partial.replay import Replay

_STALENESS = 4
_LONGEST_GRACE = 24 * 3600


@dataclasses.dataclass(frozen=True)
class Quorum:
    """The condition under which a round of a partial all-reduce ends, for `sync=`.

    Attributes:
      q: The number of workers that must have contributed and be waiting for the result, from 1 to
        the number of workers. If fewer workers are alive and have not flushed, all of these must.
      grace: Seconds to wait for more workers once the quorum is met, or a text such as "5ms".
      staleness: The number of rounds that a contribution may miss; the next round waits for it. 0
        means that every round waits for all workers.
      divisor: What averages are divided by: all "workers" of the job, as in the paper, or the
        "contributors" of the round.
    """

    q: int
    grace: float | str = 0.0
    staleness: int = _STALENESS
    divisor: str = "workers"

    @property
    def seconds(self) -> float:
        """The grace in seconds."""
        if isinstance(self.grace, str):
            return seconds_of(self.grace, "the grace")
        return number_of(self.grace, "the grace")

    def check(self, workers: int) -> None:
        """Raises InvalidArgumentError, with the value, unless a job of `workers` can use this."""
        if not isinstance(self.q, int) or not 1 <= self.q <= workers:
            raise InvalidArgumentError(
                f"the quorum is {shown(self.q)}; it must be from 1 to the number of workers, "
                f"{workers}"
            )
        if not 0 <= self.seconds <= _LONGEST_GRACE:
            raise InvalidArgumentError(
                f"the grace is {self.grace} s; it must not be negative, nor more than "
                f"{_LONGEST_GRACE} s"
            )
        if not isinstance(self.staleness, int) or not 0 <= self.staleness <= 1 << 20:
            raise InvalidArgumentError(
                f"the staleness is {shown(self.staleness)}; it must be a number of rounds, not "
                "negative"
            )
        text_of(self.divisor, "the divisor", ("workers", "contributors"))


def is_partial(sync: str | Quorum | Replay, workers: int) -> bool:
    """Checks `sync` and returns whether it means rounds that do not wait for all workers."""
    return isinstance(sync, Replay) or quorum_of(sync, workers) is not None


def quorum_of(sync: str | Quorum, workers: int) -> Quorum | None:
    """Returns the quorum that `sync` means in a job of `workers`; None for "full"."""
    if isinstance(sync, Quorum):
        sync.check(workers)
        return sync
    if isinstance(sync, str):
        if sync == "full":
            return None
        if sync == "solo":
            return Quorum(1)
        if sync == "majority":
            return Quorum((workers + 1) // 2)
    raise InvalidArgumentError(
        f"sync is {shown(sync)}; it must be 'full', 'solo', 'majority', a herring.Quorum or a "
        "herring.Replay"
    )
