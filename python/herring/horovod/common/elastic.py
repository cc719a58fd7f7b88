"""Rejects elastic training, which Herring does not support: a job keeps its workers."""

from __future__ import annotations

from typing import Any

from herring.horovod.common.exceptions import NotSupportedError

__all__ = ["refuse"]


def refuse(module: str, name: str, samples: str) -> Any:
    """Raises the error for an attribute of a module `elastic`.

    Args:
      module: the module's name.
      name: the attribute that was accessed.
      samples: the framework's class that divides samples between ranks.

    Raises:
      AttributeError: `name` begins with two underscores.
      NotSupportedError: for any other name; the message says what to use instead.
    """
    if name.startswith("__"):
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    raise NotSupportedError(
        f"hvd.elastic.{name} is not supported: a job keeps the workers it started with, and ends "
        "when one is lost. Save checkpoints, and let the launcher start the job again (torchrun "
        f"--max-restarts, or Slurm's requeue); to divide samples, use {samples}"
    )
