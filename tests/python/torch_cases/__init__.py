"""What each worker runs in the tests of herring.torch: `python -m torch_cases CASE...`.

Every case runs on all ranks of a job and raises if it fails. `test_torch.py` starts the jobs;
`test_torch_groups.py` starts those of four workers.
"""

from . import (
    buffers,
    collectives,
    eight_bits,
    grids,
    groups,
    models,
    norms,
    optimizers,
    partial,
    partial_results,
    profiles,
    programs,
    round_buffers,
    seldom,
    steps,
    without_gradients,
    wrapper,
)
from .support import CASES, GROUP_CASES

__all__ = [
    "CASES",
    "GROUP_CASES",
    "buffers",
    "collectives",
    "eight_bits",
    "grids",
    "groups",
    "models",
    "norms",
    "optimizers",
    "partial",
    "partial_results",
    "profiles",
    "programs",
    "round_buffers",
    "seldom",
    "steps",
    "without_gradients",
    "wrapper",
]
