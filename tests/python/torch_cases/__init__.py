"""What each worker does in the tests of herring.torch: `python -m torch_cases CASE...`.

Every case runs on all ranks of a job and fails by raising. `test_torch.py` starts the jobs, and
`test_torch_groups.py` those of four workers.
"""

from . import (
    collectives,
    grids,
    groups,
    models,
    norms,
    optimizers,
    partial,
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
    "programs",
    "steps",
    "wrapper",
]
