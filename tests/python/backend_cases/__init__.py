"""What each worker runs in the tests of the torch.distributed backend.

`test_torch_backend.py` starts the jobs. Every case runs on all four ranks and raises if it fails.
Most cases compare with gloo, which serves a second group of the same ranks.
"""

from . import (
    collectives,
    compiled,
    faults,
    frames,
    groups,
    hooks,
    models,
    operators,
    profiles,
    sharded,
)
from .support import CASES

CASES["once_more"] = CASES.pop("once_more")  # last, because gloo cannot reuse a store

__all__ = [
    "CASES",
    "collectives",
    "compiled",
    "faults",
    "frames",
    "groups",
    "hooks",
    "models",
    "operators",
    "profiles",
    "sharded",
]
