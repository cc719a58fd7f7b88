"""A list of arrays, as a call gives it: what is in it, and what ranks compare of it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from herring import _core
from herring.errors import InvalidArgumentError

FLOATS = ("float32", "float64", "float16", "bfloat16")
_SHOWN = 12  # arrays of a list in a message


def numpy_dtype(dtype: str) -> np.dtype:
    """NumPy's; of bfloat16, which it has not, that of its bits."""
    return np.dtype("uint16" if dtype == "bfloat16" else dtype)


class Array(NamedTuple):
    """What an array is, without its content."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def row_bytes(self) -> int:
        """Of one index of the first dimension."""
        count = int(np.prod(self.shape[1:], dtype=np.int64))
        return count * numpy_dtype(self.dtype).itemsize

    @property
    def bytes(self) -> int:
        """Of all of it."""
        return (self.shape[0] if self.shape else 1) * self.row_bytes


# Staging, first byte there, array, first byte there, bytes.
Part = tuple[np.ndarray, int, Any, int, int]


class Listed:
    """The arrays of a call, each looked at once.

    Raises:
      InvalidArgumentError: no list, or something in it is no array that the call takes.
    """

    def __init__(self, kind: str, arrays: Any, *, writable: bool, rows: bool) -> None:
        if hasattr(arrays, "shape"):
            raise InvalidArgumentError(f"{kind} takes a list of arrays, not one array")
        if not isinstance(arrays, Iterable):
            raise InvalidArgumentError(
                f"{kind} takes a list of arrays, not {type(arrays).__name__}"
            )
        self.arrays = list(arrays)
        self.about: list[Array] = []
        for index, array in enumerate(self.arrays):
            try:
                one = Array(*_core.describe_array(array, writable))
            except InvalidArgumentError as error:
                raise InvalidArgumentError(f"{kind}, array {index} of the list: {error}") from None
            if rows and not one.shape:
                raise InvalidArgumentError(
                    f"{kind}, array {index} of the list: it needs at least one dimension"
                )
            self.about.append(one)
        self.digest = hashlib.blake2b(repr(self.about).encode(), digest_size=16).digest()

    @property
    def number(self) -> int:
        """What ranks with the same list agree about: 1 to 2**31 - 1."""
        return int.from_bytes(self.digest[:4], "little") & 0x7FFFFFFF or 1

    def __str__(self) -> str:
        return text_of(self.about)

    def dtypes(self) -> dict[str, list[int]]:
        """The places in the list of the arrays of each dtype."""
        found: dict[str, list[int]] = {}
        for index, one in enumerate(self.about):
            found.setdefault(one.dtype, []).append(index)
        return found or {"float32": []}  # the ranks meet all the same


def text_of(about: Sequence[Array]) -> str:
    """What a message says of the arrays."""
    shown = ", ".join(f"{one.dtype} {list(one.shape)}" for one in about[:_SHOWN])
    more = ", ..." if len(about) > _SHOWN else ""
    plural = "" if len(about) == 1 else "s"
    return f"{len(about)} array{plural}{': ' if about else ''}{shown}{more}"


def typed(staging: np.ndarray, dtype: str) -> Any:
    """The staging as an array of a dtype that NumPy may not have."""
    if dtype != "bfloat16":
        return staging
    try:
        import torch
    except ImportError:
        raise InvalidArgumentError("a list with bfloat16 arrays needs PyTorch") from None
    return torch.from_numpy(staging.view(np.int16)).view(torch.bfloat16)
