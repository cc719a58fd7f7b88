"""What each worker runs in the tests of herring.torch: `python -m torch_cases CASE...`.

Every case runs on all ranks of a job and raises if it fails. `test_torch.py` starts the jobs;
`test_torch_groups.py` starts those of four workers.
"""

from . import (
    collectives,
    grids,
    groups,
    models,
    norms,
    optimizers,
    partial,
    profiles,
    programs,
    steps,
    wrapper,
)
from .support import CASES, GROUP_CASES

__all__ = [
    "CASES",
    "GROUP_CASES",
    "collectives",
    "grids",
    "groups",
    "models",
    "norms",
    "optimizers",
    "partial",
    "profiles",
    "programs",
    "steps",
    "wrapper",
]
