"""Collectives on values: numbers, arrays, or tensors of Keras' backend. They run at once."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from herring.horovod.common import host
from herring.horovod.common.compression import is_half
from herring.horovod.common.exceptions import NotSupportedError
from herring.horovod.common.operators import Average, operator_or_average
from herring.horovod.common.process_sets import ProcessSet, global_process_set
from herring.horovod.common.starter import Reduction
from herring.horovod.keras.compression import Compression

__all__ = ["allgather", "allreduce", "broadcast", "broadcast_global_variables", "reducescatter"]


def _array(value: Any) -> np.ndarray:
    """The value; numbers of Python as Keras has them: float32 and int32."""
    if isinstance(value, (np.ndarray, np.generic)):
        return np.asarray(value)
    return np.asarray(keras.ops.convert_to_numpy(keras.ops.convert_to_tensor(value)))


class _Values(host.Arrays):
    """Numbers, arrays, and tensors of the backend."""

    def checked(self, tensor: Any, kind: str) -> np.ndarray:
        return _array(tensor)

    def new(self, found: np.ndarray, like: Any) -> Any:
        return keras.ops.convert_to_tensor(found)


class Starter(host.Starter):
    """Starts calls of one name in one process set, on values."""

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
      value: a number, an array or a tensor of the backend; shapes and dtypes alike on all ranks.
      name: identifies the operation across ranks; None numbers the calls.
      average: older than `op`: True is Average, False is Sum.
      prescale_factor: multiplies each rank's value first.
      postscale_factor: multiplies the result.
      op: Average (None), Sum, Adasum, Min, Max or Product.
      compression: with `Compression.fp16` floats travel as float16.
      process_set: who takes part.

    Returns:
      A tensor of the backend.

    Raises:
      InvalidArgumentError: no such operator or dtype.
      HorovodInternalError: ranks disagree, or one is gone or missing.
    """
    how = Reduction(operator_or_average(op, average), prescale_factor, postscale_factor)
    array = _array(value)
    half = is_half(compression) and array.dtype.kind == "f"
    sent = array.astype(np.float16) if half else array
    found = host.Starter(name, process_set).allreduce(sent, how).result()
    return keras.ops.convert_to_tensor(found.astype(array.dtype))


def allgather(
    value: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Concatenates the values of all ranks along dimension 0, in rank order.

    Args:
      value: as of `allreduce`; dimension 0 may differ between ranks. A number counts as [1].
      name: as of `allreduce`.
      process_set: as of `allreduce`.

    Returns:
      A tensor of the backend.

    Raises:
      InvalidArgumentError, HorovodInternalError: as `allreduce`.
    """
    return Starter(name, process_set).allgather(value).result()


def broadcast(
    value: Any,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Gives all ranks the value of one.

    Args:
      value: as of `allreduce`.
      root_rank: whose it is; a rank of the job.
      name: as of `allreduce`.
      process_set: as of `allreduce`.

    Returns:
      A tensor of the backend.

    Raises:
      InvalidArgumentError, HorovodInternalError: as `allreduce`.
    """
    return Starter(name, process_set).broadcast(value, root_rank).result()


def reducescatter(
    value: Any,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Reduces a value over all ranks and leaves each a block of dimension 0.

    Args:
      value: as of `allreduce`, with at least one dimension.
      name: as of `allreduce`.
      op: Average, Sum, Min, Max or Product.
      process_set: as of `allreduce`.

    Returns:
      A tensor of the backend.

    Raises:
      InvalidArgumentError, HorovodInternalError: as `allreduce`.
    """
    return Starter(name, process_set).reducescatter(value, Reduction(op)).result()


def broadcast_global_variables(root_rank: int) -> None:
    """Not there: Keras 3 has no global variables.

    Raises:
      NotSupportedError: always; says what to use instead.
    """
    raise NotSupportedError(
        f"broadcast_global_variables({root_rank}): Keras 3 has no global variables; use "
        f"hvd.callbacks.BroadcastGlobalVariablesCallback({root_rank}), or "
        "herring.keras.broadcast_model(model)"
    )
