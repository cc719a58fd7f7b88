"""Converts MXNet's NDArrays to arrays that the core accepts."""

from __future__ import annotations

import functools
from typing import Any

import mxnet as mx
import numpy as np

from herring import _core

__all__ = ["in_place", "on_host", "say_copies"]


class _Shared:
    """Wraps an NDArray as a writable DLPack array; NDArrays of MXNet 1.9 lack `__dlpack__`."""

    def __init__(self, array: mx.nd.NDArray) -> None:
        self._array = array
        self.shape = array.shape

    def __dlpack__(self, **_: Any) -> Any:
        return self._array.to_dlpack_for_write()  # Waits for pending writes to the array.

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


def on_host(array: mx.nd.NDArray) -> bool:
    """Returns whether the core can read and write the array in place."""
    return array.context.device_type.startswith("cpu")


def say_copies(what: str, array: mx.nd.NDArray) -> None:
    """Logs, once for each operation, that it copies arrays of a GPU to host memory and back.

    Args:
      what: the name by which users know the operation.
      array: an input of the operation.
    """
    if gpu := _gpu_of(array):
        _say(what, gpu)


@functools.cache
def _say(what: str, gpu: str) -> None:
    _core.log_warning(
        f"{what}: arrays on {gpu} are copied to host memory, and the results back, by MXNet, which "
        "waits for both copies in every step. herring.jax and herring.torch take arrays of a GPU "
        "where they lie (docs/mxnet.md)"
    )


def _gpu_of(array: mx.nd.NDArray) -> str:
    """Returns the GPU that holds the array, such as "gpu(0)"; "": none does."""
    return "" if on_host(array) else str(array.context)


def in_place(array: mx.nd.NDArray, what: str) -> Any:
    """Returns an array for the core: the NDArray's own memory, or a host copy of a GPU array.

    Args:
      array: any NDArray that is not sparse.
      what: the name by which users know the operation, for the line about a copy.

    Raises:
      MXNetError: the computation of the array has failed.
    """
    say_copies(what, array)
    array.wait_to_read()  # Otherwise an error of MXNet would be taken for one of the export.
    return _Shared(array) if on_host(array) else np.ascontiguousarray(array.asnumpy())
