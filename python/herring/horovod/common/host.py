"""Starts collectives on NumPy arrays, for frameworks whose tensors reach the host as arrays.

Each method of `Starter` copies its arguments at once and returns a call under way. Results are new
arrays. Dtypes that operations do not reduce are sent as wider dtypes: bfloat16 as float32, uint16
and uint32 as int64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from herring.arrays.gradients import fresh
from herring.errors import InvalidArgumentError
from herring.horovod.common import starter
from herring.horovod.common.tensors import Tensors

_FLOATS = ("float16", "float32", "float64", "bfloat16")
_INTEGERS = ("int8", "int16", "int32", "int64", "uint8")
_WIDER: dict[str, type] = {"bfloat16": np.float32, "uint16": np.int64, "uint32": np.int64}
_REDUCED = (*_FLOATS, *_INTEGERS, "uint16", "uint32", "bool")
_MOVED = ("float16", "float32", "float64", *_INTEGERS, "bool")


def _copied(array: np.ndarray, dtype: Any) -> np.ndarray:
    copy = fresh(array.shape, dtype)
    copy[...] = array
    return copy


class Arrays(Tensors):
    """Handles NumPy arrays, which are copied at once."""

    def checked(self, tensor: np.ndarray, kind: str) -> np.ndarray:
        return tensor

    def dtype_of(self, dense: np.ndarray) -> str:
        return dense.dtype.name

    def has_floats(self, dense: np.ndarray, kind: str) -> bool:
        name = dense.dtype.name
        if name not in _REDUCED:
            raise InvalidArgumentError(
                f"{kind}: tensors of {name} are not reduced; use one of {', '.join(_REDUCED)}"
            )
        return name in _FLOATS

    def reducible(self, dense: np.ndarray, kind: str, *, own: bool) -> np.ndarray:
        return _copied(dense, _WIDER.get(dense.dtype.name, dense.dtype))

    def scaled(self, host: np.ndarray, factor: float) -> np.ndarray:
        return np.multiply(host, factor, out=host, casting="same_kind")

    def widened(self, dense: np.ndarray, factor: float) -> np.ndarray:
        host = _copied(dense, np.float64)
        return np.trunc(host * factor, out=host) if factor != 1.0 else host

    def narrowed(self, found: np.ndarray, like: Any) -> np.ndarray:
        dtype = np.dtype(like.dtype)
        if found.dtype == dtype:
            return found
        if found.dtype.kind == "f" and dtype.kind in "iu":
            return found.astype(np.int64).astype(dtype)
        return found.astype(dtype)

    def movable(self, dense: np.ndarray, kind: str, *, own: bool) -> np.ndarray:
        return self.rows(dense, kind)

    def moved(self, host: np.ndarray, like: Any) -> np.ndarray:
        return self.viewed(host, like, like.shape)

    def rows(self, dense: np.ndarray, kind: str) -> np.ndarray:
        if dense.dtype.hasobject:
            raise InvalidArgumentError(
                f"{kind}: strings and objects are sent by broadcast_object()"
            )
        shape = dense.shape or (1,)
        rows = _copied(dense, dense.dtype).reshape(shape[0], math.prod(shape[1:]))
        return rows if dense.dtype.name in _MOVED else rows.view(np.uint8)

    def viewed(self, found: np.ndarray, like: Any, shape: Sequence[int]) -> np.ndarray:
        flat = np.ascontiguousarray(found).reshape(-1)
        return flat.view(np.uint8).view(np.dtype(like.dtype)).reshape(tuple(shape))

    def bytes_of(self, dense: np.ndarray, kind: str) -> np.ndarray:
        return np.ascontiguousarray(dense).reshape(-1).view(np.uint8)

    def exact(self, raw: np.ndarray, like: Any) -> np.ndarray:
        found = raw.view(np.dtype(like.dtype))
        return found if found.dtype == np.float64 else found.astype(np.float32)

    def like(self, tensor: Any, dense: np.ndarray) -> Any:
        # Does not refer to the array's memory, so that its owner can free it meanwhile.
        return np.broadcast_to(np.empty((), dense.dtype), dense.shape)

    def write(self, found: np.ndarray, tensor: np.ndarray) -> None:
        tensor[...] = found


class Starter(starter.Starter):
    """Starts calls with one name in one process set, on NumPy arrays."""

    tensors = Arrays()
