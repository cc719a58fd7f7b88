"""Horovod's API (0.28), implemented by Herring.

    import herring.horovod.torch as hvd          # instead of: import horovod.torch as hvd

The modules ``tensorflow``, ``tensorflow.keras`` and ``keras`` exist too.

Scripts that contain ``import horovod`` run unchanged under ``herring run --horovod`` or
``python -m herring.horovod script.py``; see docs/horovod.md.
"""

from __future__ import annotations

from typing import Any

__version__ = "0.28.1"  # The Horovod version of this API, which scripts may compare.


def __getattr__(name: str) -> Any:
    if name == "run":
        from herring.horovod.runner import run

        return run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
