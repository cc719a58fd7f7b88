"""What a property suite finds of credit on one network, and what it asks of all of them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

__all__ = [
    "ALL",
    "COLLAPSE",
    "LEAST_BUFFER",
    "MOST",
    "ROUNDS",
    "SECONDS",
    "SHARE",
    "WINDOWS",
    "Verdict",
    "breaches",
    "draw_evenly",
    "search",
    "with_unit",
]

#: A job has found its window after so many rounds, or so many seconds, whichever is longer.
ROUNDS, SECONDS = 10, 5.0
#: Share of the best fixed window's goodput: in most networks, and in all.
MOST, ALL = 0.90, 0.75
#: In how many networks `MOST` must hold.
SHARE = 0.95
#: Goodput that stays below this share of what a smaller window gave has collapsed.
COLLAPSE = 0.5
#: Fixed windows that are tried, in segments, up to credit_max.
WINDOWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
#: A switch port holds at least so much of one segment from each sender: below that every window
#: overruns it, and there is nothing to control.
LEAST_BUFFER = 1.1


@dataclass(frozen=True)
class Verdict:
    """What came of one network.

    Attributes:
      seed: the network's number.
      network: it, in words.
      goodput: bytes per second of self-controlled credit, once it has found its window.
      best: of the best fixed window.
      window, best_window: segments: at the end, and the best one.
      collapsed: goodput stayed below half of what a smaller window gave.
      bound: what bound the last round; empty if the model does not say.
    """

    seed: int
    network: str
    goodput: float
    best: float
    window: int
    best_window: int
    collapsed: bool
    bound: str = ""

    @property
    def share(self) -> float:
        """Goodput as a share of the best fixed window's."""
        return self.goodput / self.best


def breaches(verdicts: Sequence[Verdict]) -> list[str]:
    """Returns the properties that do not hold, in words."""
    found = []
    good = sum(v.share >= MOST for v in verdicts)
    if good < SHARE * len(verdicts):
        found.append(
            f"only {good} of {len(verdicts)} reach {MOST:.0%} of the best fixed window's goodput, "
            f"{SHARE:.0%} must"
        )
    poor = [v.seed for v in verdicts if v.share < ALL]
    if poor:
        found.append(f"{len(poor)} stay below {ALL:.0%} of it: networks {_some(poor)}")
    collapsed = [v.seed for v in verdicts if v.collapsed]
    if collapsed:
        found.append(f"{len(collapsed)} collapse: networks {_some(collapsed)}")
    return found


def search(goodput: Callable[[int, int], float], least: int) -> tuple[dict[int, float], int]:
    """Looks for the best fixed window.

    Args:
      goodput: bytes per second with a window of so many segments, over so many rounds.
      least: rounds in which all windows are tried; those near the best are tried for more.

    Returns:
      What each window gave in those few rounds, and the best window.
    """
    brief = {window: goodput(window, least) for window in WINDOWS}
    near = [window for window in WINDOWS if brief[window] >= ALL * max(brief.values())]
    return brief, max((goodput(window, ROUNDS), window) for window in near)[1]


def draw_evenly(draw: random.Random, least: float, most: float) -> float:
    """Returns a number from `least` to `most` whose logarithm is evenly distributed."""
    return math.exp(draw.uniform(math.log(least), math.log(most)))


def with_unit(number: float, unit: str) -> str:
    """Returns it with three digits, as 1.25 Gbit/s."""
    for factor, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= factor:
            return f"{number / factor:.3g} {prefix}{unit}"
    return f"{number:.3g} {unit}"


def _some(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds[:20])) + (" ..." if len(seeds) > 20 else "")
