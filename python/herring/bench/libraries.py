"""Names of the libraries with which the benchmark compares Herring, and of their algorithms."""

from __future__ import annotations

from collections.abc import Mapping

#: The all-reduce algorithms that can be selected for each library, with the library's own names.
#: If none is selected, a library chooses one by size and number of ranks.
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
        "butterfly": "6",  # Rabenseifner's algorithm
    },
    "horovod": {"gloo": "gloo", "mpi": "mpi"},  # what carries its messages
}

#: Values of ``--peer`` other than herring.
PEERS = tuple(ALGORITHMS)

#: Libraries that run through torch.distributed, which also accept arrays on GPUs.
OF_TORCH = ("gloo", "nccl")
