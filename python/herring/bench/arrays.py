"""What operations of the benchmark work on: arrays in host memory, here, or on a GPU (`gpus`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from herring.bench import pattern

__all__ = ["HostArrays", "Prepared"]


def _nothing() -> None:
    return None


@dataclasses.dataclass
class Prepared:
    """An operation that is ready to run, again and again.

    Attributes:
      run: reduces the contents of ``parts`` over all ranks, in place. Collective.
      parts: the memory it works on: 1-D numpy arrays of ``pattern.storage_dtype``.
      close: frees what ``run`` needs; ``parts`` are gone then.
      load: copies ``parts`` to where ``run`` works, if that is elsewhere (a GPU's memory).
      store: copies the result back into ``parts``.
    """

    run: Callable[[], None]
    parts: list[np.ndarray]
    close: Callable[[], Any] = _nothing
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
        """New ones of so many elements, by ``allocate(shape, dtype=name)``."""
        name = pattern.storage_dtype(dtype).name
        return cls([allocate((count,), dtype=name) for count in counts], dtype)

    @classmethod
    def placed(cls, reduction: Any, counts: Sequence[int], dtype: str) -> HostArrays:
        """The gradients of a planned reduction, in its arenas."""
        storage = pattern.storage_dtype(dtype)
        parts = [
            reduction.arena(arena)[offset : offset + nbytes].view(storage)[:count]
            for (arena, offset, nbytes), count in zip(reduction.placements, counts)
        ]
        return cls(parts, dtype)

    def operands(self) -> list[Any]:
        """What Herring takes for each."""
        if self._dtype != "bfloat16":
            return list(self._parts)
        # numpy has no bfloat16; a torch tensor over the same memory says what the bits mean.
        import torch

        return [torch.from_numpy(part).view(torch.bfloat16) for part in self._parts]

    def prepared(self, run: Callable[[], None], close: Callable[[], Any] = _nothing) -> Prepared:
        """``run``, which reduces these arrays in place."""
        return Prepared(run, self._parts, close)
