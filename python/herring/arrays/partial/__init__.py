"""Partial all-reduce: rounds that wait for few, and lose nothing of those who are late.

Paper: Li et al., Taming Unbalanced Training Workloads in Deep Learning with Partial Collective
Operations, 2020, sections 4 and 5. There the quorum is an expectation and
a missed result is overwritten; here the quorum is counted, and every worker gets every result.
"""

from herring.arrays.partial.quorum import Quorum, is_partial
from herring.arrays.partial.reduction import (
    PartialReduction,
    allreduce_in_rounds,
    flush,
    partial_statistics,
)
from herring.arrays.partial.replay import Replay
from herring.arrays.partial.statistics import RoundInfo, RoundStatistics

__all__ = [
    "PartialReduction",
    "Quorum",
    "Replay",
    "RoundInfo",
    "RoundStatistics",
    "allreduce_in_rounds",
    "flush",
    "is_partial",
    "partial_statistics",
]
