"""Rejects elastic training as in Horovod, which is there for PyTorch only."""

from __future__ import annotations

from typing import Any

from herring.horovod.common.elastic import refuse


def __getattr__(name: str) -> Any:
    refuse(__name__, name, "tf.data.Dataset.shard")
