"""NDArrays as the core takes them."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np

__all__ = ["in_place", "on_host"]


class _Shared:
    """An NDArray by DLPack, to read and write; MXNet 1.9 has no `__dlpack__` of its own."""

    def __init__(self, array: mx.nd.NDArray) -> None:
        self._array = array
        self.shape = array.shape

    def __dlpack__(self, **_: Any) -> Any:
        return self._array.to_dlpack_for_write()  # waits for what is still to be written to it

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


def on_host(array: mx.nd.NDArray) -> bool:
    """Whether it can be read and written in place."""
    return array.context.device_type.startswith("cpu")


def in_place(array: mx.nd.NDArray) -> Any:
    """What the core reads and writes instead of an NDArray: its memory; of a GPU's a copy."""
    return _Shared(array) if on_host(array) else np.ascontiguousarray(array.asnumpy())
