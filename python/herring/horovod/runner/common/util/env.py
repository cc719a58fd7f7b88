"""Reads the environment variables that launchers set."""

from __future__ import annotations

import os

from herring.errors import ConfigurationError

# The variables for rank and size set by `herring run --horovod`, Open MPI and PMI launchers.
_PAIRS = (
    ("HOROVOD_RANK", "HOROVOD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)


def get_env_rank_and_size() -> tuple[int, int]:
    """Reads this process's rank and the number of ranks; works before `init` is called.

    Returns:
      The rank and the size; (0, 1) if no launcher has set variables.

    Raises:
      ConfigurationError: one variable of a pair is set without the other.
    """
    for pair in _PAIRS:
        found = [os.environ.get(name) for name in pair]
        if found[0] is not None and found[1] is not None:
            return int(found[0]), int(found[1])
        if any(value is not None for value in found):
            there, missing = pair if found[0] is not None else reversed(pair)
            raise ConfigurationError(f"{there} is set and {missing} is not; set both or neither")
    return 0, 1
