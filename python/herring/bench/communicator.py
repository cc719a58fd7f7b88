"""What the benchmark asks of a library: a barrier, one operation, and a way to gather numbers.

Herring and its peers (``herring.bench.peers``) sit behind the same few methods, so that one loop
with one clock measures them all.
"""

# ruff: noqa: D102 - the methods are described at Communicator
from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from herring.bench import pattern


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
    close: Callable[[], Any] = lambda: None
    load: Callable[[], Any] = lambda: None
    store: Callable[[], Any] = lambda: None


class Communicator(Protocol):
    """A started library. Every method but ``counters`` and ``describe`` is collective."""

    name: str
    rank: int
    size: int
    local_size: int
    num_nodes: int

    def barrier(self) -> None:
        """Returns when every rank has entered."""

    def allreduce(self, count: int, dtype: str, op: str) -> Prepared:
        """Returns an all-reduce of a zeroed array of ``count`` elements."""

    def planned(self, counts: list[int], dtype: str, op: str) -> Prepared:
        """Returns the reduction of gradients of ``counts`` elements, as training does it."""

    def variables(self, counts: list[int], dtype: str, op: str) -> Prepared:
        """Returns the same reduction as operations of their own, one per gradient."""

    def gather(self, numbers: np.ndarray) -> np.ndarray:
        """Returns the 1-D float64 arrays of all ranks, stacked: shape (size, n)."""

    def counters(self) -> tuple[int, int] | None:
        """Returns bytes this process has sent and received so far; None if nobody counts."""

    def describe(self) -> dict[str, Any]:
        """Returns what to note beside the results."""

    def close(self) -> None:
        """Leaves the job."""


class HerringCommunicator:
    """Herring by its public interface. Settings come from the environment.

    Args:
      shared: operate on ``herring.empty`` memory, which local ranks share, rather than on an
        array that numpy allocated.
      algorithm: of an all-reduce; see ``herring.allreduce``.
    """

    name = "herring"

    def __init__(self, shared: bool = True, algorithm: str = "herring") -> None:
        import herring

        herring.init()
        self._herring = herring
        self._shared = shared
        self._algorithm = algorithm
        self.rank: int = herring.rank()
        self.size: int = herring.size()
        self.local_size: int = herring.local_size()
        self.num_nodes: int = herring.num_nodes()

    def barrier(self) -> None:
        self._herring.barrier()

    def allreduce(self, count: int, dtype: str, op: str) -> Prepared:
        storage = pattern.storage_dtype(dtype)
        if self._shared:
            elements = self._herring.empty((count,), dtype=storage.name)
        else:
            elements = np.empty(count, dtype=storage)
        elements.fill(0)
        operand: Any = elements
        if dtype == "bfloat16":
            # numpy has no bfloat16; a torch tensor over the same memory says what the bits mean.
            import torch

            operand = torch.from_numpy(elements).view(torch.bfloat16)
        # A name belongs to one kind of operation for as long as the job lives.
        name = f"bench.allreduce.{op}.{dtype}.{count}"
        allreduce, algorithm = self._herring.allreduce, self._algorithm

        def run() -> None:
            allreduce(operand, op, name=name, algorithm=algorithm)

        return Prepared(run, [elements])

    def planned(self, counts: list[int], dtype: str, op: str) -> Prepared:
        name = f"bench.planned.{op}.{dtype}.{sum(counts)}.{len(counts)}"
        sized = [(count, dtype) for count in counts]
        reduction = self._herring.PlannedReduction(sized, name=name, op=op)
        storage = pattern.storage_dtype(dtype)
        parts = []
        for index, (arena, offset, nbytes) in enumerate(reduction.placements):
            part = reduction.arena(arena)[offset : offset + nbytes].view(storage)
            part = part[: counts[index]]
            part.fill(0)
            parts.append(part)

        def run() -> None:
            reduction.begin()
            for index in range(len(counts)):
                reduction.ready(index)
            reduction.wait()

        return Prepared(run, parts, reduction.close)

    def variables(self, counts: list[int], dtype: str, op: str) -> Prepared:
        storage = pattern.storage_dtype(dtype)
        parts = [self._herring.empty((count,), dtype=storage.name) for count in counts]
        for part in parts:
            part.fill(0)
        names = [f"bench.variable.{op}.{dtype}.{sum(counts)}.{i}" for i in range(len(counts))]
        operands = parts
        if dtype == "bfloat16":
            import torch

            operands = [torch.from_numpy(part).view(torch.bfloat16) for part in parts]
        start = self._herring.allreduce_async

        def run() -> None:
            handles = [start(part, op, name=name) for part, name in zip(operands, names)]
            for handle in handles:
                handle.wait()

        return Prepared(run, parts)

    def gather(self, numbers: np.ndarray) -> np.ndarray:
        gathered = self._herring.allgather(np.ascontiguousarray(numbers, dtype=np.float64))
        return np.asarray(gathered).reshape(self.size, -1)

    def counters(self) -> tuple[int, int] | None:
        stats = self._herring.stats()
        return int(stats["bytes_sent"]), int(stats["bytes_received"])

    def describe(self) -> dict[str, Any]:
        stats = self._herring.stats()
        return {
            "array": "herring" if self._shared else "numpy",
            "algorithm": self._algorithm,
            "servers": stats.get("servers", []),
            "credit_bytes": stats.get("credit_bytes"),
        }

    def close(self) -> None:
        self._herring.shutdown()
