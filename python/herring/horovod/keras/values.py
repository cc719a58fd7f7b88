"""Collectives on numbers, arrays and tensors of Keras' backend, outside compiled functions.

Args:
  value: A number, an array or a tensor of the backend, the same shape and dtype on all ranks.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from herring.errors import InvalidArgumentError
from herring.horovod.common import host
from herring.horovod.common.compression import is_half
from herring.horovod.common.exceptions import NotSupportedError
from herring.horovod.common.operators import Average, operator_or_average
from herring.horovod.common.process_sets import ProcessSet, global_process_set
from herring.horovod.common.starter import Reduction
from herring.horovod.keras.compression import Compression


def _array(value: Any) -> np.ndarray:
    """Converts a value to an array; Python numbers become float32 or int32, as in Keras."""
    if isinstance(value, (np.ndarray, np.generic)):
        return np.asarray(value)
    return np.asarray(keras.ops.convert_to_numpy(keras.ops.convert_to_tensor(value)))


def _tensor(found: np.ndarray) -> Any:
    """Converts a result to a tensor of the backend."""
    tensor = keras.ops.convert_to_tensor(found)
    kept = np.asarray(keras.ops.convert_to_numpy(tensor))
    if kept.dtype == found.dtype or found.dtype.kind not in "iuf":
        return tensor
    # Floats may lose digits, as usual in Keras, but must not become infinite.
    floats = found.dtype.kind == "f"
    survives = np.isfinite(kept) | ~np.isfinite(found) if floats else kept == found
    if not survives.all():
        raise InvalidArgumentError(
            f"the result has values of {found.dtype} that {kept.dtype} of Keras on "
            f"{keras.backend.backend()} cannot hold; use herring's functions for NumPy arrays, or "
            "let the backend use 64 bits (jax.config.update('jax_enable_x64', True))"
        )
    return tensor


class _Values(host.Arrays):
    """Handles numbers, arrays, and tensors of the backend."""

    def checked(self, tensor: Any, kind: str) -> np.ndarray:
        return _array(tensor)

    def new(self, found: np.ndarray, like: Any) -> Any:
        return _tensor(found)


class Starter(host.Starter):
    """Starts calls with one name in one process set, on numbers, arrays and tensors."""

    tensors = _Values()


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: Any = Compression.none,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Reduces a value over all ranks.

    Args:
      compression: `Compression.fp16` sends floats as float16; `Compression.none` does not.

    Returns:
      A tensor of the backend.
    """
    how = Reduction(operator_or_average(op, average), prescale_factor, postscale_factor)
    array = _array(value)
    half = is_half(compression) and array.dtype.kind == "f"
    sent = array.astype(np.float16) if half else array
    found = host.Starter(name, process_set).allreduce(sent, how).result()
    return _tensor(found.astype(array.dtype))


def allgather(
    value: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Concatenates the values of all ranks along dimension 0, in rank order.

    Args:
      value: a number, an array or a tensor of the backend. Dimension 0 may differ between ranks; a
        number counts as [1].

    Returns:
      A tensor of the backend.
    """
    return Starter(name, process_set).allgather(value).result()


def broadcast(
    value: Any,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Copies a value from one rank to all ranks.

    Returns:
      A tensor of the backend.
    """
    return Starter(name, process_set).broadcast(value, root_rank).result()


def reducescatter(
    value: Any,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Reduces a value over all ranks and gives each rank one block of the result.

    Args:
      value: an array or a tensor of the backend, the same shape and dtype on all ranks, with at
        least one dimension. It is divided along dimension 0.

    Returns:
      A tensor of the backend.
    """
    return Starter(name, process_set).reducescatter(value, Reduction(op)).result()


def broadcast_global_variables(root_rank: int) -> None:
    """Raises an error, because Keras 3 has no global variables.

    Raises:
      NotSupportedError: always; the message says what to use instead.
    """
    raise NotSupportedError(
        f"broadcast_global_variables({root_rank}): Keras 3 has no global variables; use "
        f"hvd.callbacks.BroadcastGlobalVariablesCallback({root_rank}), or "
        "herring.keras.broadcast_model(model)"
    )
