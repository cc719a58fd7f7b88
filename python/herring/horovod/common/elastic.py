"""Elastic training is not there: a job keeps the workers it has started with."""

from __future__ import annotations

from typing import Any

from herring.horovod.common.exceptions import NotSupportedError

__all__ = ["refuse"]


def refuse(module: str, name: str, samples: str) -> Any:
    """Raises what a module `elastic` says of each of its names.

    Args:
      module: its name.
      name: what was looked for.
      samples: what hands out parts of the data.

    Raises:
      AttributeError: Python's own names.
      NotSupportedError: any other; it says what to use instead.
    """
    if name.startswith("__"):
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    raise NotSupportedError(
        f"hvd.elastic.{name} is not there: a job keeps the workers it has started with, and ends "
        "when one is lost. Save checkpoints, and let the launcher start the job again (torchrun "
        f"--max-restarts, or Slurm's requeue); for samples use {samples}"
    )
