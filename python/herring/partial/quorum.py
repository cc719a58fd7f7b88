"""When a round of a partial all-reduce ends."""

from __future__ import annotations

import dataclasses

from herring.errors import InvalidArgumentError
from herring.partial.replay import Replay

__all__ = ["Quorum", "is_partial", "quorum_of"]

_STALENESS = 4
_LONGEST_GRACE = 24 * 3600


@dataclasses.dataclass(frozen=True)
class Quorum:
    """When a round of a partial all-reduce ends, for `sync=`.

    Attributes:
      q: workers that must have contributed and be waiting for the result, 1 to the number of
        workers; if fewer are left that live and have not flushed, all of these.
      grace: seconds to wait for more, once the quorum is met.
      staleness: rounds that a contribution may miss; the round after them waits for it. 0: every
        round waits for everybody.
      divisor: averages divide by all "workers" of the job (as in the paper), or by the
        "contributors" of the round.
    """

    q: int
    grace: float = 0.0
    staleness: int = _STALENESS
    divisor: str = "workers"

    def check(self, workers: int) -> None:
        """Raises InvalidArgumentError, naming the value, unless this fits a job of `workers`."""
        if not isinstance(self.q, int) or not 1 <= self.q <= workers:
            raise InvalidArgumentError(
                f"the quorum is {self.q}; it must be from 1 to the number of workers, {workers}"
            )
        if not 0 <= self.grace <= _LONGEST_GRACE:
            raise InvalidArgumentError(
                f"the grace is {self.grace} s; it must not be negative, nor more than "
                f"{_LONGEST_GRACE} s"
            )
        if not isinstance(self.staleness, int) or not 0 <= self.staleness <= 1 << 20:
            raise InvalidArgumentError(
                f"the staleness is {self.staleness}; it must be a number of rounds, not negative"
            )
        if self.divisor not in ("workers", "contributors"):
            raise InvalidArgumentError(
                f"the divisor is {self.divisor!r}; it must be 'workers' or 'contributors'"
            )


def is_partial(sync: str | Quorum | Replay, workers: int) -> bool:
    """Whether `sync` means rounds that do not wait for everybody; checks its values."""
    return isinstance(sync, Replay) or quorum_of(sync, workers) is not None


def quorum_of(sync: str | Quorum, workers: int) -> Quorum | None:
    """What `sync` means in a job of so many workers; None for "full"."""
    if isinstance(sync, Quorum):
        sync.check(workers)
        return sync
    if sync == "full":
        return None
    if sync == "solo":
        return Quorum(1)
    if sync == "majority":
        return Quorum((workers + 1) // 2)
    raise InvalidArgumentError(
        f"sync is {sync!r}; it must be 'full', 'solo', 'majority', a herring.Quorum or a "
        "herring.Replay"
    )
