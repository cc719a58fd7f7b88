"""Fits the time of a message over its size to a line: a latency, and the time of each byte."""

from __future__ import annotations

from collections.abc import Sequence


def fit_line(
    points: Sequence[tuple[float, float]], short: float = 0.0
) -> tuple[float, float, float]:
    """Fits time = alpha + beta * max(bytes - burst, 0) to pairs of (bytes, seconds).

    Args:
      points: The pairs; at least one must be above `short`.
      short: Messages of up to so many bytes do not show the rate.

    Returns:
      alpha in seconds, which is the time of the shortest message; beta in seconds per byte; and the
      burst, which are the bytes that a token bucket lets through at once. beta and the burst
      minimize the squares of the relative errors over the messages above `short`.
    """
    alpha = min(points)[1]
    # Each of these sums is a coefficient of the normal equations for start + beta * bytes.
    above = [(1 / seconds, size / seconds) for size, seconds in points if size > short]
    ones, mixed, squares = (
        sum(a * a for a, _ in above),
        sum(a * b for a, b in above),
        sum(b * b for _, b in above),
    )
    ends, sizes = sum(a for a, _ in above), sum(b for _, b in above)
    spread = ones * squares - mixed * mixed
    if len(above) > 1 and spread > 0:
        beta = (ones * sizes - mixed * ends) / spread
        start = (ends - beta * mixed) / ones
        if start <= alpha and beta > 0:
            return alpha, beta, (alpha - start) / beta
    return alpha, (sizes - alpha * mixed) / squares, 0.0
