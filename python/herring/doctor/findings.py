"""What the doctor reports: findings, and how their numbers are written."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from herring.base.units import show_rate, show_size

__all__ = [
    "SEVERITIES",
    "Finding",
    "listed",
    "ordered",
    "show_duration",
    "show_rate",
    "show_size",
    "times",
]

#: The severities, the worst one first.
SEVERITIES = ("error", "warning", "note")


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that should be changed, or known.

    Attributes:
        severity: ``error`` (a job fails or hangs), ``warning`` (a job is slow, or may fail) or
            ``note`` (good to know).
        subject: The host, or two hosts with an arrow between them; ``job`` for the whole job.
        what: What was found, in a sentence.
        change: What to change.
        helps: What the change is good for, with a number where there is one.
        factor: How many times longer an average of gradients takes because of it; 1 if the time
            does not change, or if the change is not known.
    """

    severity: str
    subject: str
    what: str
    change: str = ""
    helps: str = ""
    factor: float = 1.0


def ordered(findings: Iterable[Finding]) -> list[Finding]:
    """Returns findings with the worst severity first, and in it the one that costs most time."""
    return sorted(findings, key=lambda one: (SEVERITIES.index(one.severity), -one.factor))


def show_duration(seconds: float) -> str:
    """Returns a duration as text, e.g. ``20 ms`` or ``1.5 s``."""
    size = abs(seconds)
    if size < 0.5e-6:
        return "0 us"
    if size < 1e-3:
        return f"{seconds * 1e6:.0f} us"
    if size < 1:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds:.3g} s" if size < 1000 else f"{seconds:.0f} s"


def times(factor: float) -> str:
    """Returns a factor as text, e.g. ``2.1 times``."""
    return f"{factor:.2g} times" if factor < 9.95 else f"{factor:.0f} times"


def listed(words: Sequence[str], most: int = 4) -> str:
    """Returns words as text, e.g. ``h1, h2 and h3``; ``h1, h2 and 14 more`` if there are many."""
    if len(words) > most:
        return f"{', '.join(words[: most - 1])} and {len(words) - most + 1} more"
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))
