"""Herring: gradient averaging for data-parallel training through parameter servers.

    import herring

    herring.init()
    herring.allreduce(array)          # in place, over all ranks

For PyTorch see `herring.torch`, for the launcher ``herring run --help``.

All ranks, or those of `group`, call a collective with the same arguments, in any order of names. A
function that describes one of the arguments and errors below says what is special to it. Functions
with ``_async`` in their name raise InvalidArgumentError at once, and their handle's `wait` raises
the other errors.

Args:
  op: "average" (floats only), "sum", "min", "max" or "product".
  name: Identifies the operation across ranks; None numbers the calls.
  prescale: A factor for every rank's values before the reduction (floats only).
  postscale: A factor for the result (floats only).
  timeout: Seconds, or a text such as "5s", until the operation fails; None means
    ``HERRING_TIMEOUT``.
  group: The `herring.Group` that takes part, from `herring.new_group`; None means all ranks.

Raises:
  InvalidArgumentError: An argument cannot be used on some rank; the message says which. All ranks
    that make the call raise it.
  MismatchError: Ranks gave shapes, dtypes or other arguments that differ and must not; the message
    lists what each rank gave.
  PeerLostError: A worker or a server died or left.
  ShutdownError: This process is not in a job.
  TimeoutError: Not all ranks made the call in time; the message names the missing ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from herring.errors import (
    AuthenticationError,
    ConfigurationError,
    DeviceError,
    HerringError,
    InvalidArgumentError,
    MismatchError,
    PeerLostError,
    ShutdownError,
    TimeoutError,
)

__version__: str

if TYPE_CHECKING:
    from herring.arrays.collectives import (
        allgather,
        alltoall,
        barrier,
        broadcast,
        empty,
        reduce_scatter,
    )
    from herring.arrays.grouped import (
        grouped_allgather,
        grouped_allreduce,
        grouped_allreduce_async,
        grouped_broadcast,
        grouped_reduce_scatter,
    )
    from herring.arrays.groups import Group, new_group, ranks_of_node
    from herring.arrays.joining import join
    from herring.arrays.messages import Receiving, receive, receive_async, send, send_async
    from herring.arrays.objects import allgather_object, broadcast_object
    from herring.arrays.operations import Handle
    from herring.arrays.planned import PlannedReduction
    from herring.arrays.rooted import gather, reduce, scatter
    from herring.arrays.runtime import (
        abort,
        init,
        is_initialized,
        local_rank,
        local_size,
        node_rank,
        num_nodes,
        rank,
        shutdown,
        size,
        start_timeline,
        stats,
        stop_timeline,
        write_flight_record,
    )
    from herring.arrays.wire import TopK
    from herring.partial import (
        PartialReduction,
        Quorum,
        Replay,
        RoundInfo,
        RoundStatistics,
        flush,
        partial_statistics,
    )
    from herring.partial.allreduce import allreduce, allreduce_async

# Modules that define the public names. They are imported when a public name is first used, in this
# order, until one lists the name in its __all__.
_HOMES = (
    "herring.arrays.runtime",
    "herring.arrays.groups",
    "herring.arrays.operations",
    "herring.arrays.collectives",
    "herring.arrays.objects",
    "herring.partial.allreduce",
    "herring.arrays.rooted",
    "herring.arrays.messages",
    "herring.arrays.grouped",
    "herring.arrays.joining",
    "herring.partial",
    "herring.arrays.planned",
    "herring.arrays.wire",
)

# The list is written out because type checkers read it.
__all__ = [
    "AuthenticationError",
    "ConfigurationError",
    "DeviceError",
    "Group",
    "Handle",
    "HerringError",
    "InvalidArgumentError",
    "MismatchError",
    "PartialReduction",
    "PeerLostError",
    "PlannedReduction",
    "Quorum",
    "Receiving",
    "Replay",
    "RoundInfo",
    "RoundStatistics",
    "ShutdownError",
    "TimeoutError",
    "TopK",
    "__version__",
    "abort",
    "allgather",
    "allgather_object",
    "allreduce",
    "allreduce_async",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_object",
    "empty",
    "flush",
    "gather",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_allreduce_async",
    "grouped_broadcast",
    "grouped_reduce_scatter",
    "init",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "new_group",
    "node_rank",
    "num_nodes",
    "partial_statistics",
    "rank",
    "ranks_of_node",
    "receive",
    "receive_async",
    "reduce",
    "reduce_scatter",
    "scatter",
    "send",
    "send_async",
    "shutdown",
    "size",
    "start_timeline",
    "stats",
    "stop_timeline",
    "write_flight_record",
]


if not TYPE_CHECKING:  # otherwise type checkers would accept every name

    def __getattr__(name: str) -> Any:
        # The launcher imports this package without the core; the first use of a name loads it.
        if name in __all__:
            import importlib

            if name == "__version__":
                globals()[name] = importlib.import_module("herring.base.version").version()
                return globals()[name]
            for home in map(importlib.import_module, _HOMES):
                if name in home.__all__:
                    globals()[name] = getattr(home, name)
                    return globals()[name]
        from herring.base.habits import missing

        raise missing("herring", name, __all__, __all__)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
