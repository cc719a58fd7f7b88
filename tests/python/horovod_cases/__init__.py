"""What each worker runs in the tests of herring.horovod: `python -m horovod_cases CASE...`."""

from . import collectives, compiled, elastic, failures, optimizers, rounds
from .support import CASES

__all__ = ["CASES", "collectives", "compiled", "elastic", "failures", "optimizers", "rounds"]
