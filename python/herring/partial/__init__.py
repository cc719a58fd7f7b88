"""Partial all-reduces: rounds that wait for a quorum of workers and lose no late contribution.

The method is from Li et al., "Taming Unbalanced Training Workloads in Deep Learning with Partial
Collective Operations", 2020, sections 4 and 5. In that paper the quorum is an expected number, and
a result that a worker misses is overwritten. Here the quorum is an exact count, and every worker
gets every result.
"""

from herring.partial.named import allreduce_in_rounds, flush, partial_statistics
from herring.partial.quorum import Quorum, is_partial
from herring.partial.reduction import PartialReduction
from herring.partial.replay import Replay
from herring.partial.statistics import RoundInfo, RoundStatistics

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
