"""Rejects elastic training, which is not supported: a job keeps the workers it started with."""

from __future__ import annotations

from typing import Any

from herring.horovod.common.elastic import refuse


def __getattr__(name: str) -> Any:
    refuse(__name__, name, "tf.data.Dataset.shard")
