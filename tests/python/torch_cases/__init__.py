"""What each worker does in the tests of herring.torch: `python -m torch_cases CASE...`.

Every case runs on all ranks of a job and fails by raising. `test_torch.py` starts the jobs.
"""

from . import collectives, models, optimizers, partial, programs, steps, wrapper
from .support import CASES

__all__ = [
    "CASES",
    "collectives",
    "models",
    "optimizers",
    "partial",
    "programs",
    "steps",
    "wrapper",
]
