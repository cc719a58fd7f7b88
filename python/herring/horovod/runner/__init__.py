"""The parts of ``horovod.runner`` that scripts use: `run`, and a few helpers in submodules."""

from __future__ import annotations

from herring.horovod.runner.function import run

__all__ = ["run"]
