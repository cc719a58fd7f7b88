"""Grouped collectives: a list of arrays as one operation, done for all of them or for none.

Arrays of the list may have any mix of shapes and dtypes. They are put together in staging memory
(`herring.empty`), and results are copied back only when everything is complete: what that costs is
as much memory again as the arrays have, and one more copy on the way in and on the way out. In
return there is one announcement per dtype (for gathers and broadcasts one in all) however many
arrays there are, and none of them is touched by an operation that fails, on any rank. But when a
worker dies or leaves in the middle, ranks that had everything by then have changed theirs.

Lists must agree on all ranks: the number of arrays, their order, shapes and dtypes. Ranks with
another list are named by `MismatchError` on every rank, without one more round trip.
"""

from herring.arrays.grouped.gathers import grouped_allgather, grouped_broadcast
from herring.arrays.grouped.reductions import (
    grouped_allreduce,
    grouped_allreduce_async,
    grouped_reduce_scatter,
)

__all__ = [
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_allreduce_async",
    "grouped_broadcast",
    "grouped_reduce_scatter",
]
