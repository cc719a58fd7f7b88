"""The names that the framework adapters re-export from `herring`: all but those for arrays.

`herring.torch`, `herring.tensorflow` and `herring.keras` import this module.
"""

from herring.arrays.collectives import barrier
from herring.arrays.groups import Group, new_group, ranks_of_node
from herring.arrays.objects import allgather_object, broadcast_object
from herring.arrays.runtime import (
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
from herring.errors import *  # noqa: F403
from herring.errors import __all__ as __all__

__all__ = [
    *__all__,
    "Group",
    "TopK",
    "allgather_object",
    "barrier",
    "broadcast_object",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "new_group",
    "node_rank",
    "num_nodes",
    "rank",
    "ranks_of_node",
    "shutdown",
    "size",
    "start_timeline",
    "stats",
    "stop_timeline",
    "write_flight_record",
]
