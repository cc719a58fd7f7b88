"""What the doctor reports: findings."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

#: The severities, the worst one first.
SEVERITIES = ("error", "warning", "note")


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that should be changed, or known."""

    # ``error`` (a job fails or hangs), ``warning`` (a job is slow, or may fail) or ``note`` (good
    # to know).
    severity: str
    subject: str  # the host, or two hosts with an arrow between them; ``job`` for the whole job
    what: str  # what was found, in a sentence
    change: str = ""  # what to change
    helps: str = ""  # what the change is good for, with a number where there is one
    # How many times longer an average of gradients takes because of it; 1 if the time does not
    # change, or if the change is not known.
    factor: float = 1.0


def ordered(findings: Iterable[Finding]) -> list[Finding]:
    """Returns findings with the worst severity first, and in it the one that costs most time."""
    return sorted(findings, key=lambda one: (SEVERITIES.index(one.severity), -one.factor))


def times(factor: float) -> str:
    """Returns a factor as text, e.g. ``2.1 times``."""
    return f"{factor:.2g} times" if factor < 9.95 else f"{factor:.0f} times"
