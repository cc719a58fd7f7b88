"""Says which operations copy tensors of a GPU through host memory."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from herring import _core


def say_copies(what: str, tensors: Iterable[Any]) -> None:
    """Logs, once for each operation, that it copies tensors of a GPU to host memory and back.

    Args:
      tensors: the inputs of the operation: tensors, variables, tf.IndexedSlices or None.
    """
    device = _gpu_of(tensors)
    if device:
        _say(what, device)


@functools.cache
def _say(what: str, device: str) -> None:
    _core.log_warning(
        f"{what}: tensors on {device} are copied to host memory, and the results back, by "
        "TensorFlow, which waits for both copies in every step. herring.jax and herring.torch take "
        "arrays of a GPU where they lie; tf.device('CPU') is better for tensors that need no GPU "
        "(docs/tensorflow.md, GPUs)"
    )


def _gpu_of(tensors: Iterable[Any]) -> str:
    """Returns the first GPU that holds one of the tensors, such as "GPU:0"; "": none does.

    A tensor of a graph has no device before TensorFlow places it. It is expected on a GPU if
    TensorFlow has one.
    """
    for tensor in tensors:
        one = tensor.values if isinstance(tensor, tf.IndexedSlices) else tensor
        name = getattr(one, "device", None)
        if name is None:  # None, or a Keras variable
            one = getattr(one, "value", None)
            name = getattr(one, "device", None)
        if not isinstance(name, str):
            continue
        if "GPU:" in name.upper():
            return f"GPU:{name.upper().rpartition('GPU:')[2]}"
        if not name and (found := _gpus()):
            return found[0]
    return ""


@functools.cache
def _gpus() -> list[str]:
    return [gpu.name.replace("/device:", "") for gpu in tf.config.list_logical_devices("GPU")]
