"""Defines what a property suite finds on one network, and what must hold for all networks."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

#: A job has found its window after so many rounds and so many seconds, whichever takes longer.
ROUNDS, SECONDS = 10, 5.0
#: Shares of the best fixed window's goodput that most networks, and all networks, must reach.
MOST, ALL = 0.90, 0.75
#: Share of the networks that must reach `MOST`.
SHARE = 0.95
#: Goodput that stays below this share of what a smaller window gave has collapsed.
COLLAPSE = 0.5
#: Fixed windows to try, in segments, up to credit_max.
WINDOWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
#: A switch port holds at least this multiple of a segment for each sender. Below that every window
#: overruns the port, and there is nothing to control.
LEAST_BUFFER = 1.1


@dataclass(frozen=True)
class Verdict:
    """The result of one network.

    Attributes:
      seed: the network's number.
      network: the network's parameters in words.
      goodput: bytes per second with self-controlled credit, once it has found its window.
      best: bytes per second with the best fixed window.
      window: the window at the end, in segments.
      best_window: the best fixed window, in segments.
      collapsed: whether goodput stayed below half of what a smaller window gave.
      bound: what took the time in the last round; empty if the model does not tell.
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
        """Goodput divided by the best fixed window's."""
        return self.goodput / self.best


def breaches(verdicts: Sequence[Verdict]) -> list[str]:
    """Returns a sentence for each property that does not hold."""
    found = []
    good = sum(v.share >= MOST for v in verdicts)
    if good < SHARE * len(verdicts):
        found.append(
            f"only {good} of {len(verdicts)} reach {MOST:.0%} of the best fixed window's goodput; "
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
    """Searches the best fixed window.

    Args:
      goodput: a function of (window in segments, rounds) that returns bytes per second.
      least: the rounds for which all windows are tried; those near the best are tried for longer.

    Returns:
      The goodput of each window in those few rounds, and the best window.
    """
    brief = {window: goodput(window, least) for window in WINDOWS}
    near = [window for window in WINDOWS if brief[window] >= ALL * max(brief.values())]
    return brief, max((goodput(window, ROUNDS), window) for window in near)[1]


def draw_evenly(draw: random.Random, least: float, most: float) -> float:
    """Returns a number from `least` to `most` whose logarithm is evenly distributed."""
    return math.exp(draw.uniform(math.log(least), math.log(most)))


def with_unit(number: float, unit: str) -> str:
    """Returns a number with three digits and a prefixed unit, as in ``1.25 Gbit/s``."""
    for factor, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= factor:
            return f"{number / factor:.3g} {prefix}{unit}"
    return f"{number:.3g} {unit}"


def _some(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds[:20])) + (" ..." if len(seeds) > 20 else "")
