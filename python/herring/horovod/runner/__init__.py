"""What scripts use of ``horovod.runner``: `run`, and a few helpers below it."""

from __future__ import annotations

from herring.horovod.runner.function import run

__all__ = ["run"]
