"""Sends the values of an elastic state without pickle."""

from __future__ import annotations

from typing import Any

import numpy as np

import herring
from herring.arrays.objects import broadcast_plain
from herring.errors import InvalidArgumentError

_NUMBERS = "biufc"  # kinds of dtypes


def broadcast_values(value: Any, root: int, *, name: str) -> Any:
    """Hands plain data and NumPy arrays of rank `root` to every rank, without pickle.

    Args:
      value: Plain data (see `herring.arrays.plain`) with arrays and scalars of NumPy anywhere;
        read on the root only.

    Returns:
      The data with arrays of their own; on the root `value` itself.

    Raises:
      InvalidArgumentError: A part on the root is neither plain data nor an array of numbers.
    """
    arrays: list[np.ndarray] = []

    def lift(part: Any) -> tuple[str, Any]:
        is_array = type(part) is np.ndarray
        if not (is_array or isinstance(part, np.generic)) or part.dtype.kind not in _NUMBERS:
            raise InvalidArgumentError(
                f"State: a value has a {type(part).__module__}.{type(part).__qualname__}"
                f"{f' of {part.dtype}' if is_array else ''}, which would be pickled; "
                "HERRING_OBJECTS allows None, bool, int, float, complex, str, bytes, arrays of "
                "numbers of NumPy, and list, tuple and dict of these"
            )
        if not is_array:
            return "scalar", [part.dtype.str, part.tobytes()]
        arrays.append(np.array(part, order="C"))
        return "array", [part.dtype.str, list(part.shape)]

    def lower(word: str, data: Any) -> Any:
        dtype = np.dtype(data[0])
        if word not in ("array", "scalar") or dtype.kind not in _NUMBERS:
            raise ValueError(f"{word!r} of {dtype} is not allowed")
        if word == "scalar":
            return np.frombuffer(data[1], dtype)[0]
        arrays.append(np.empty(data[1], dtype))
        return arrays[-1]

    found = broadcast_plain(value, root, name=name, lift=lift, lower=lower)
    for index, array in enumerate(arrays):
        herring.broadcast(array.reshape(-1).view(np.uint8), root, name=f"{name}.{index}")
    return found
