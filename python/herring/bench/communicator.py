"""The interface through which the benchmark uses a communication library.

Herring and the other libraries (``herring_lab.competitors``) implement the same few methods, so
that one loop with one clock measures all of them.
"""

# ruff: noqa: D102 - the methods are described at Communicator
from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from herring.arrays.arguments import Operator
from herring.bench.arrays import HostArrays, Prepared
from herring.bench.gpus import GpuArrays, Gpus

__all__ = ["Communicator", "HerringCommunicator", "Prepared"]


class Communicator(Protocol):
    """A started library. Every method but ``counters`` and ``describe`` is collective."""

    name: str
    rank: int
    size: int
    local_size: int
    num_nodes: int

    def barrier(self) -> None:
        """Returns when every rank has entered."""

    def allreduce(self, count: int, dtype: str, op: Operator) -> Prepared:
        """Returns an all-reduce of a zeroed array of ``count`` elements."""

    def planned(self, counts: list[int], dtype: str, op: Operator) -> Prepared:
        """Returns the planned reduction of gradients of ``counts`` elements, as in training."""

    def variables(self, counts: list[int], dtype: str, op: Operator) -> Prepared:
        """Returns a reduction of the same gradients with one operation for each gradient."""

    def gather(self, numbers: np.ndarray) -> np.ndarray:
        """Returns the 1-D float64 arrays of all ranks, stacked: shape (size, n)."""

    def counters(self) -> tuple[int, int] | None:
        """Returns the bytes that this process has sent and received, or None if unknown."""

    def describe(self) -> dict[str, Any]:
        """Returns details of the library and its configuration, to store with the results."""

    def close(self) -> None:
        """Leaves the job."""


class HerringCommunicator:
    """Measures Herring through its public interface. Settings come from the environment.

    Args:
      shared: whether to allocate arrays with ``herring.empty``, whose memory local ranks share,
        or with numpy.
      gpus: puts tensors on one of these GPUs; None puts arrays in host memory.
      wire_dtype: the dtype in which planned gradients travel between nodes; None: their own.
    """

    name = "herring"

    def __init__(
        self,
        shared: bool = True,
        algorithm: str = "herring",
        gpus: Gpus | None = None,
        wire_dtype: str | None = None,
    ) -> None:
        import herring

        herring.init()
        self._herring = herring
        self._shared = shared
        self._algorithm = algorithm
        self._wire_dtype = wire_dtype
        self.rank: int = herring.rank()
        self.size: int = herring.size()
        self.local_size: int = herring.local_size()
        self.num_nodes: int = herring.num_nodes()
        self._gpu = None if gpus is None else gpus.of(self.rank)
        self._node_stage = ""

    def barrier(self) -> None:
        self._herring.barrier()

    def _arrays(self, counts: list[int], dtype: str, shared: bool) -> HostArrays | GpuArrays:
        if self._gpu is not None:
            return GpuArrays.of(self._gpu, counts, dtype)
        return HostArrays.of(self._herring.empty if shared else np.empty, counts, dtype)

    def allreduce(self, count: int, dtype: str, op: Operator) -> Prepared:
        arrays = self._arrays([count], dtype, self._shared)
        (operand,) = arrays.operands()
        # A name belongs to one kind of operation until the job ends.
        name = f"bench.allreduce.{op}.{dtype}.{count}"
        allreduce, algorithm = self._herring.allreduce, self._algorithm

        def run() -> None:
            allreduce(operand, op, name=name, algorithm=algorithm)

        return arrays.prepared(run)

    def planned(self, counts: list[int], dtype: str, op: Operator) -> Prepared:
        name = f"bench.planned.{op}.{dtype}.{sum(counts)}.{len(counts)}"
        sized = [(count, dtype) for count in counts]
        device = None if self._gpu is None else self._gpu.index
        reduction = self._herring.PlannedReduction(
            sized, name=name, op=op, device=device, wire_dtype=self._wire_dtype
        )
        arrays: HostArrays | GpuArrays
        if self._gpu is None:
            arrays = HostArrays.placed(reduction, counts, dtype)
        else:
            arrays = GpuArrays.placed(self._gpu, reduction, counts, dtype)

        def run() -> None:
            reduction.begin()
            for index in range(len(counts)):
                reduction.ready(index)
            reduction.wait()

        def close() -> None:
            # Known only now: the first rounds determine which memory the ranks can reach.
            self._node_stage = reduction.node_stage
            reduction.close()

        return arrays.prepared(run, close)

    def variables(self, counts: list[int], dtype: str, op: Operator) -> Prepared:
        arrays = self._arrays(counts, dtype, True)
        names = [f"bench.variable.{op}.{dtype}.{sum(counts)}.{i}" for i in range(len(counts))]
        operands, start = arrays.operands(), self._herring.allreduce_async

        def run() -> None:
            handles = [start(part, op, name=name) for part, name in zip(operands, names)]
            for handle in handles:
                handle.wait()

        return arrays.prepared(run)

    def gather(self, numbers: np.ndarray) -> np.ndarray:
        gathered = self._herring.allgather(np.ascontiguousarray(numbers, dtype=np.float64))
        return np.asarray(gathered).reshape(self.size, -1)

    def counters(self) -> tuple[int, int] | None:
        stats = self._herring.stats()
        return int(stats["bytes_sent"]), int(stats["bytes_received"])

    def describe(self) -> dict[str, Any]:
        stats = self._herring.stats()
        where: dict[str, Any] = {"array": "herring" if self._shared else "numpy"}
        if self._gpu is not None:
            where = {"array": "torch", "device": self._gpu.describe()}
            if self._node_stage:
                where["node_stage"] = self._node_stage
        return {
            **where,
            "algorithm": self._algorithm,
            "servers": stats.get("servers", []),
            "credit_bytes": stats.get("credit_bytes"),
        }

    def close(self) -> None:
        self._herring.shutdown()
