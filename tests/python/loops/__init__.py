"""Typical training loops, each run with Herring and with torch's own DDP.

A loop is a function that takes a `libraries.Library`, which wraps models and runs collectives. It
returns tensors that must be equal with both libraries. `python -m loops` compares them on all
ranks of a job; `test_torch_loops.py` starts the jobs.
"""

import importlib
import pkgutil

from .support import LOOPS

for _module in pkgutil.iter_modules(__path__):
    if not _module.name.startswith("_"):
        importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["LOOPS"]
