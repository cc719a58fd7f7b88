"""Partial all-reduces: rounds that wait for few, and lose nothing of those who are late.

See docs/partial.md.
"""

from herring.arrays.partial import (
    PartialReduction,
    Quorum,
    Replay,
    RoundInfo,
    RoundStatistics,
    flush,
    partial_statistics,
)

__all__ = [
    "PartialReduction",
    "Quorum",
    "Replay",
    "RoundInfo",
    "RoundStatistics",
    "flush",
    "partial_statistics",
]
