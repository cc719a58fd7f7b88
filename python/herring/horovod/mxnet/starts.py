"""Starts collectives on MXNet arrays."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np

from herring.errors import InvalidArgumentError
from herring.horovod.common import host
from herring.mxnet.arrays import say_copies

__all__ = ["Starter"]


class _Arrays(host.Arrays):
    """Handles MXNet arrays, which are copied to host memory."""

    def checked(self, tensor: Any, kind: str) -> np.ndarray:
        if not isinstance(tensor, mx.nd.NDArray):
            raise InvalidArgumentError(
                f"{kind}: expected an mx.nd.NDArray, got {type(tensor).__name__}"
            )
        if tensor.stype != "default":
            raise InvalidArgumentError(
                f"{kind}: the array is {tensor.stype}; use tensor.tostype('default')"
            )
        say_copies(f"hvd.{kind}", tensor)
        array: np.ndarray = tensor.asnumpy()  # Waits for pending writes to the array.
        return array

    def like(self, tensor: Any, dense: np.ndarray) -> Any:
        return tensor

    def new(self, found: np.ndarray, like: Any) -> Any:
        make = mx.np.array if isinstance(like, mx.np.ndarray) else mx.nd.array
        return make(found, ctx=like.context, dtype=found.dtype)

    def write(self, found: np.ndarray, tensor: Any) -> None:
        self.new(found, tensor).copyto(tensor)


class Starter(host.Starter):
    """Starts calls with one name in one process set."""

    tensors = _Arrays()
