"""Contents whose reduction is known exactly, so that a single wrong element shows.

Element ``i`` is ``base(i)`` on every rank, and ``base(i) + size`` on rank ``i mod size``. ``base``
is a hash of the index with values from 1, small enough that no dtype rounds a partial sum. A piece
that lands at the wrong place, a rank that is left out or counted twice, a division by the wrong
number: each changes elements.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from herring.errors import InvalidArgumentError

DTYPES = (
    "float32",
    "float64",
    "float16",
    "bfloat16",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "bool",
)
FLOATS = ("float32", "float64", "float16", "bfloat16")
OPS = ("sum", "average", "min", "max", "product")
_ITEM_BYTES = {"float64": 8, "float16": 2, "bfloat16": 2, "int8": 1, "uint8": 1, "bool": 1}
_ITEM_BYTES |= {"float32": 4, "int32": 4, "int16": 2, "int64": 8}
# Up to here every whole number has a value of its own in the dtype.
_WHOLE = {"float16": 2**11, "bfloat16": 2**8, "int8": 127, "uint8": 255, "int16": 2**15 - 1}
_CHUNK = 1 << 18  # elements: the work is done in pieces that stay in the cache


def item_bytes(dtype: str) -> int:
    """Returns the bytes of one element of a dtype named as in ``DTYPES``."""
    return _ITEM_BYTES[dtype]


def storage_dtype(dtype: str) -> np.dtype:
    """Returns the numpy dtype that holds the elements; bfloat16, unknown to numpy, as uint16."""
    return np.dtype("uint16" if dtype == "bfloat16" else dtype)


def to_storage(values: np.ndarray, dtype: str) -> np.ndarray:
    """Converts whole numbers (int64) to elements; exact for those that a pattern holds."""
    if dtype == "bfloat16":
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(np.dtype(dtype))


@dataclasses.dataclass(frozen=True)
class Pattern:
    """What the ranks put in and what must come out.

    Attributes:
      dtype: one of ``DTYPES``.
      op: one of ``OPS``.
      size: number of ranks.

    Raises:
      InvalidArgumentError: the dtype cannot hold the sum over so many ranks exactly.
    """

    dtype: str
    op: str
    size: int

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES or self.op not in OPS:
            raise InvalidArgumentError(f"no such combination: {self.op} of {self.dtype}")
        limit = _WHOLE.get(self.dtype, 2**24)
        if self.dtype != "bool" and 2 * self.size > limit:
            raise InvalidArgumentError(
                f"--check: {self.dtype} counts exactly to {limit}, too few for {self.size} ranks"
            )

    def fill(self, elements: np.ndarray, rank: int, first: int = 0) -> None:
        """Writes the contribution of ``rank`` into a 1-D array of ``storage_dtype``.

        ``first`` is the index of the first element, where the array is one part of several.
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
        """Returns how many elements of a result are not exactly what they must be."""
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
            # One rank's factor is base + size, the others' are base: keep the base at one.
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
