"""Converts MXNet's NDArrays to arrays that the core accepts."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np

__all__ = ["in_place", "on_host"]


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


def in_place(array: mx.nd.NDArray) -> Any:
    """Returns an array for the core: the NDArray's own memory, or a host copy of a GPU array.

    Raises:
      MXNetError: the computation of the array has failed.
    """
    array.wait_to_read()  # Otherwise an error of MXNet would be taken for one of the export.
    return _Shared(array) if on_host(array) else np.ascontiguousarray(array.asnumpy())
