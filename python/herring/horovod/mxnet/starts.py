"""Starts collectives on MXNet's arrays; each method returns the call, under way."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np

from herring.errors import InvalidArgumentError
from herring.horovod.common import host

__all__ = ["Starter"]


class Starter(host.Starter):
    """Starts calls of one name in one process set, on copies that MXNet makes of its arrays."""

    def _checked(self, tensor: Any, kind: str) -> np.ndarray:
        if not isinstance(tensor, mx.nd.NDArray):
            raise InvalidArgumentError(
                f"{kind}: expected an mx.nd.NDArray, got {type(tensor).__name__}"
            )
        if tensor.stype != "default":
            raise InvalidArgumentError(
                f"{kind}: the array is {tensor.stype}; use tensor.tostype('default')"
            )
        array: np.ndarray = tensor.asnumpy()  # waits for what is still to be written to it
        return array

    def _like(self, tensor: Any, dense: np.ndarray) -> Any:
        return tensor

    def _new(self, found: np.ndarray, like: Any) -> Any:
        make = mx.np.array if isinstance(like, mx.np.ndarray) else mx.nd.array
        return make(found, ctx=like.context, dtype=found.dtype)

    def _write(self, found: np.ndarray, tensor: Any) -> None:
        self._new(found, tensor).copyto(tensor)
