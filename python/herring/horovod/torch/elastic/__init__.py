"""Elastic training is not there: a job keeps the workers it has started with."""

from __future__ import annotations

from typing import Any

from herring.horovod.common.exceptions import NotSupportedError


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    raise NotSupportedError(
        f"hvd.elastic.{name} is not there: a job keeps the workers it has started with, and ends "
        "when one is lost. Save checkpoints, and let the launcher start the job again (torchrun "
        "--max-restarts, or Slurm's requeue); for samples use torch.utils.data.DistributedSampler"
    )
