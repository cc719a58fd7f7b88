"""A worker for tests under launchers: checks a few all-reduces and prints who took part."""

from __future__ import annotations

import sys

import numpy as np

import herring


def main() -> None:
    """Joins a job as often as the first argument says, and prints one line each time."""
    for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 1):
        herring.init()
        rank, size = herring.rank(), herring.size()
        for length in (3, 50_000, 300_000):
            array = np.full(length, rank, np.float32)
            herring.allreduce(array)
            assert np.all(array == (size - 1) / 2), (rank, size, array[:3])
        servers = [server["dedicated"] for server in herring.stats()["servers"]]
        print(
            f"rank {rank}/{size} local {herring.local_rank()}/{herring.local_size()} "
            f"node {herring.node_rank()}/{herring.num_nodes()} dedicated {sum(servers)}",
            flush=True,
        )
        herring.shutdown()


if __name__ == "__main__":
    main()
