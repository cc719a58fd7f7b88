"""Names of the libraries that the benchmark compares with, and of their algorithms."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["ALGORITHMS", "OF_TORCH", "PEERS"]

#: Algorithms of an all-reduce that can be asked of a peer, and what the peer calls them. Each also
#: has one of its own choice, by size and number of ranks.
ALGORITHMS: Mapping[str, Mapping[str, str]] = {
    "gloo": {},
    "nccl": {"ring": "Ring", "tree": "Tree"},
    "mpich": {"butterfly": "reduce_scatter_allgather", "doubling": "recursive_doubling"},
    "openmpi": {
        "linear": "1",
        "tree": "2",  # reduce, then broadcast
        "doubling": "3",
        "ring": "4",
        "segmented-ring": "5",
        "butterfly": "6",  # Rabenseifner's
    },
}

#: Values of ``--peer`` beside herring.
PEERS = tuple(ALGORITHMS)

#: Those of torch.distributed, which also take arrays on GPUs.
OF_TORCH = ("gloo", "nccl")
