"""Array contents whose reduction is known exactly, so that every wrong element is detected.

Element ``i`` is ``base(i)`` on every rank except rank ``i mod size``, where it is ``base(i) +
size``. ``base`` is a hash of the index. Its values start at 1 and are so small that no dtype rounds
a partial sum. A misplaced piece, a rank that is missing or counted twice, and a wrong divisor all
change elements.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from herring.errors import InvalidArgumentError

FLOATS = ("float32", "float64", "float16", "bfloat16")
DTYPES = (*FLOATS, "int8", "int16", "int32", "int64", "uint8", "bool")
OPS = ("sum", "average", "min", "max", "product")
_ITEM_BYTES = {"float64": 8, "float16": 2, "bfloat16": 2, "int8": 1, "uint8": 1, "bool": 1}
_ITEM_BYTES |= {"float32": 4, "int32": 4, "int16": 2, "int64": 8}
# For each dtype, the largest n such that it represents all integers up to n exactly.
_WHOLE = {"float16": 2**11, "bfloat16": 2**8, "int8": 127, "uint8": 255, "int16": 2**15 - 1}
_CHUNK = 1 << 18  # Elements that are handled at a time; a chunk fits into the cache.


def item_bytes(dtype: str) -> int:
    """Returns the size in bytes of one element of a dtype in ``DTYPES``."""
    return _ITEM_BYTES[dtype]


def storage_dtype(dtype: str) -> np.dtype:
    """Returns the numpy dtype that stores the elements: uint16 for bfloat16, else ``dtype``."""
    return np.dtype("uint16" if dtype == "bfloat16" else dtype)


def to_storage(values: np.ndarray, dtype: str) -> np.ndarray:
    """Converts integers (int64) to elements; exact for the values that a pattern contains."""
    if dtype == "bfloat16":
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(np.dtype(dtype))


@dataclasses.dataclass(frozen=True)
class Pattern:
    """The contributions of the ranks and the expected result, which the dtype must hold exactly."""

    dtype: str
    op: str
    size: int

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES or self.op not in OPS:
            raise InvalidArgumentError(f"unknown op or dtype: {self.op} of {self.dtype}")
        limit = _WHOLE.get(self.dtype, 2**24)
        if self.dtype != "bool" and 2 * self.size > limit:
            raise InvalidArgumentError(
                f"--check: {self.dtype} is exact only up to {limit}, too small for {self.size} "
                "ranks; use a wider --dtype"
            )

    def fill(self, elements: np.ndarray, rank: int, first: int = 0) -> None:
        """Writes the contribution of ``rank`` into a 1-D array of ``storage_dtype``.

        ``first`` is the index of the array's first element if the array is one of several parts.
        """
        for start in range(0, elements.size, _CHUNK):
            index = first + np.arange(start, min(start + _CHUNK, elements.size), dtype=np.int64)
            own = index % self.size == rank
            if self.dtype == "bool":
                values = self._base(index) | (own & self._spark(index))
            else:
                values = self._base(index) + own * self.size
            elements[start : start + _CHUNK] = to_storage(values, self.dtype)

    def count_wrong(self, elements: np.ndarray, first: int = 0) -> int:
        """Returns how many elements of a result differ from the exact result."""
        wrong = 0
        for start in range(0, elements.size, _CHUNK):
            index = first + np.arange(start, min(start + _CHUNK, elements.size), dtype=np.int64)
            expected = to_storage(self._expected(index), self.dtype)
            wrong += int(np.count_nonzero(elements[start : start + _CHUNK] != expected))
        return wrong

    def _levels(self) -> int:
        if self.dtype == "bool":
            return 2
        if self.op == "product":
            # One rank's factor is base + size, all others are base: a base of 1 keeps it exact.
            return 1
        return min(64, _WHOLE.get(self.dtype, 2**24) // self.size - 1)

    def _base(self, index: np.ndarray) -> np.ndarray:
        hashed = (index.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(40)
        levels = hashed % np.uint64(self._levels())
        return levels.astype(np.int64) + (0 if self.dtype == "bool" else 1)

    def _spark(self, index: np.ndarray) -> np.ndarray:
        hashed = (index.astype(np.uint64) * np.uint64(0xC2B2AE3D27D4EB4F)) >> np.uint64(41)
        return (hashed % np.uint64(2)).astype(np.int64)

    def _expected(self, index: np.ndarray) -> np.ndarray:
        base = self._base(index)
        if self.dtype == "bool":
            either = base | self._spark(index)
            lowest = base if self.size > 1 else either
            return lowest if self.op in ("min", "product") else either
        if self.op == "sum":
            return (base + 1) * self.size
        if self.op == "average":
            return base + 1
        if self.op == "min":
            return base + (self.size if self.size == 1 else 0)
        if self.op == "max":
            return base + self.size
        return base * 0 + 1 + self.size
