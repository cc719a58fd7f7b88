"""What each worker runs in the tests of herring.horovod: `python -m horovod_cases CASE...`."""

from . import collectives, elastic, failures, optimizers
from .support import CASES

__all__ = ["CASES", "collectives", "elastic", "failures", "optimizers"]
