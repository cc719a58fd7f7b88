"""Words of reports: lists of ranks, durations and sizes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def ranks_text(ranks: Iterable[int], kind: str = "rank") -> str:
    """Returns e.g. "rank 3", "ranks 0 to 2" or "ranks 0, 2 and 5 to 7".

    Args:
        ranks: The numbers, in any order.
        kind: "rank" or "server".
    """
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    parts = []
    for run in runs:
        if len(run) > 2:
            parts.append(f"{run[0]} to {run[-1]}")
        else:
            parts += [str(rank) for rank in run]
    many = sum(map(len, runs)) != 1
    return f"{kind}{'s' if many else ''} {joined(parts)}"


def joined(parts: Sequence[str]) -> str:
    """Returns "a", "a and b" or "a, b and c"."""
    if len(parts) < 2:
        return "".join(parts)
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


def seconds_text(seconds: float) -> str:
    """Returns a duration with two or three digits, e.g. "12 s", "1.3 s" or "40 ms"."""
    seconds = max(seconds, 0.0)
    if seconds >= 10:
        return f"{seconds:.0f} s"
    if seconds >= 1:
        return f"{seconds:.1f} s"
    if seconds >= 1e-3:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds * 1e6:.0f} us"


def bytes_text(size: int) -> str:
    """Returns a size, e.g. "4 B" or "25 MB"."""
    value = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.4g} {unit}"
        value /= 1000
    return f"{value:.4g} TB"
