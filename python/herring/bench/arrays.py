"""Arrays in host memory on which the benchmark's operations work; `gpus` has those on a GPU."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from herring.bench import pattern


def _nothing() -> None:
    return None


@dataclasses.dataclass
class Prepared:
    """An operation that is ready to run any number of times."""

    # Reduces the contents of ``parts`` over all ranks, in place (collective).
    run: Callable[[], None]
    # The memory of the operation: 1-D numpy arrays of ``pattern.storage_dtype``.
    parts: list[np.ndarray]
    # Frees what ``run`` needs; ``parts`` must not be used afterwards.
    close: Callable[[], Any] = _nothing
    # Copies ``parts`` into the memory on which ``run`` works, if that is a GPU's memory.
    load: Callable[[], Any] = _nothing
    store: Callable[[], Any] = _nothing


class HostArrays:
    """Arrays in host memory: ``parts``, 1-D numpy arrays of ``pattern.storage_dtype``."""

    def __init__(self, parts: list[np.ndarray], dtype: str) -> None:
        for part in parts:
            part.fill(0)
        self._parts = parts
        self._dtype = dtype

    @classmethod
    def of(cls, allocate: Callable[..., Any], counts: Sequence[int], dtype: str) -> HostArrays:
        """Allocates one array for each element count, with ``allocate(shape, dtype=name)``."""
        name = pattern.storage_dtype(dtype).name
        return cls([allocate((count,), dtype=name) for count in counts], dtype)

    @classmethod
    def placed(cls, reduction: Any, counts: Sequence[int], dtype: str) -> HostArrays:
        """Returns the gradients of a planned reduction, which lie in its arenas."""
        storage = pattern.storage_dtype(dtype)
        parts = [
            reduction.arena(arena)[offset : offset + nbytes].view(storage)[:count]
            for (arena, offset, nbytes), count in zip(reduction.placements, counts)
        ]
        return cls(parts, dtype)

    def operands(self) -> list[Any]:
        """Returns the arrays in a form that Herring accepts."""
        if self._dtype != "bfloat16":
            return list(self._parts)
        # numpy has no bfloat16, so a torch tensor over the same memory carries the dtype.
        import torch

        return [torch.from_numpy(part).view(torch.bfloat16) for part in self._parts]

    def prepared(self, run: Callable[[], None], close: Callable[[], Any] = _nothing) -> Prepared:
        """Wraps ``run``, which reduces these arrays in place, as a `Prepared`."""
        return Prepared(run, self._parts, close)
