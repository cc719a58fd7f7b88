"""The loop that measures an operation, and the statistics of its times."""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from herring.arrays.arguments import Operator
from herring.bench import pattern
from herring.bench.communicator import Communicator, Prepared


@dataclasses.dataclass(frozen=True)
class Request:
    """One measurement."""

    size_bytes: int  # size of the array in bytes; rounded down to whole elements, at least one
    dtype: str = "float32"
    op: Operator = "average"
    warmup: int = 3
    iterations: int = 10
    batches: int = 1
    check: bool = False
    # ``allreduce`` reduces one array; ``planned`` reduces gradients through a plan, as in training;
    # ``variables`` reduces each gradient with an operation of its own.
    operation: str = "allreduce"
    # The number of gradients that ``planned`` and ``variables`` divide the bytes into.
    gradients: int = 50

    @property
    def count(self) -> int:
        """The number of elements of the array."""
        return max(1, self.size_bytes // pattern.item_bytes(self.dtype))

    def gradient_counts(self) -> list[int]:
        """Returns the number of elements of each gradient, as uneven as in real models.

        The largest gradient has about as many elements as all gradients below half its size.
        """
        parts = min(self.gradients, self.count)
        weights = [1 + (part * 7 % parts) ** 2 for part in range(parts)]
        spare, total = self.count - parts, sum(weights)
        counts = [1 + spare * weight // total for weight in weights]
        counts[-1] += self.count - sum(counts)
        return counts


@dataclasses.dataclass
class Measurement:
    """The result of one request."""

    request: Request
    # Seconds that each timed iteration took on its slowest rank, in order, all batches.
    times: list[float]
    # Number of wrong elements over all ranks and checked results; None if not checked.
    wrong: int | None
    sent_per_worker: int | None  # bytes sent per iteration, mean over workers; None if unknown
    # Bytes received per iteration, mean over workers; None if unknown.
    received_per_worker: int | None
    # The most bytes that one worker sent or received per iteration; None if unknown.
    busiest_bytes: int | None

    def to_json(self) -> dict[str, Any]:
        """Returns this measurement's entry in the ``results`` list of the JSON file."""
        size = self.request.count * pattern.item_bytes(self.request.dtype)
        step = self.request.iterations
        middle = statistics.median(self.times)
        return {
            "operation": self.request.operation,
            "bytes": size,
            "count": self.request.count,
            "dtype": self.request.dtype,
            "op": self.request.op,
            "min_seconds": min(self.times),
            "p50_seconds": middle,
            "p99_seconds": percentile(self.times, 0.99),
            "max_seconds": max(self.times),
            "algbw_bytes_per_second": size / middle,
            "wrong": self.wrong,
            "wire_bytes_per_worker": self.sent_per_worker,
            "wire_bytes_received_per_worker": self.received_per_worker,
            "linkbw_bytes_per_second": (
                None if self.busiest_bytes is None else self.busiest_bytes / middle
            ),
            "times_seconds": self.times,
            "batches_seconds": [
                self.times[start : start + step] for start in range(0, len(self.times), step)
            ],
        }


def percentile(values: list[float], fraction: float) -> float:
    """Returns the smallest value that at least ``fraction`` of the values do not exceed.

    Values are not interpolated: with fewer than 100 values, the 99th percentile is the largest.
    """
    ordered = sorted(values)
    return ordered[max(0, math.ceil(fraction * len(ordered)) - 1)]


def measure(
    communicator: Communicator, request: Request, before_batch: Callable[[int], None] | None = None
) -> Measurement:
    """Measures one size; every rank calls this with the same request.

    Each iteration is a barrier, then the timed operation. The ranks' times are gathered once, after
    the loop, so that there is only the barrier between two iterations.

    Args:
      before_batch: called on each rank with the batch's number before the batch starts.

    Returns:
      The measurement, the same on all ranks.
    """
    if request.operation == "planned":
        prepared = communicator.planned(request.gradient_counts(), request.dtype, request.op)
    elif request.operation == "variables":
        prepared = communicator.variables(request.gradient_counts(), request.dtype, request.op)
    else:
        prepared = communicator.allreduce(request.count, request.dtype, request.op)
    operation = prepared.run
    known = Known(communicator, request, prepared) if request.check else None
    last_iteration = request.batches * request.iterations - 1
    times: list[float] = []
    sent = received = 0
    counted = True
    for batch in range(request.batches):
        if before_batch is not None:
            before_batch(batch)
        for warmup in range(request.warmup):
            first = batch == 0 and warmup == 0
            if known and first:
                known.fill()
            communicator.barrier()
            operation()
            if known and first:
                known.check()
        communicator.barrier()
        before = communicator.counters()
        for _ in range(request.iterations):
            last = len(times) == last_iteration
            if known and last:
                known.fill()
            communicator.barrier()
            start = time.perf_counter()
            operation()
            times.append(time.perf_counter() - start)
            if known and last:
                known.check()
        after = communicator.counters()
        if before is None or after is None:
            counted = False
        else:
            sent += after[0] - before[0]
            received += after[1] - before[1]
    rows = communicator.gather(
        np.array([*times, known.wrong if known else 0, sent, received], dtype=np.float64)
    )
    prepared.close()
    slowest = rows[:, : len(times)].max(axis=0)
    per_worker = rows[:, -2:].sum(axis=0) / (communicator.size * len(times))
    busiest = rows[:, -2:].max() / len(times)
    return Measurement(
        request=request,
        times=[float(seconds) for seconds in slowest],
        wrong=int(rows[:, -3].sum()) if known else None,
        sent_per_worker=round(per_worker[0]) if counted else None,
        received_per_worker=round(per_worker[1]) if counted else None,
        busiest_bytes=round(busiest) if counted else None,
    )


class Known:
    """Fills an operation's memory with known contents and counts wrong elements in its results."""

    def __init__(self, communicator: Communicator, request: Request, prepared: Prepared) -> None:
        self._pattern = pattern.Pattern(request.dtype, request.op, communicator.size)
        self._rank = communicator.rank
        self._prepared = prepared
        self.wrong = 0

    def fill(self) -> None:
        """Writes this rank's contribution into the operation's memory."""
        first = 0
        for part in self._prepared.parts:
            self._pattern.fill(part, self._rank, first)
            first += part.size
        self._prepared.load()

    def check(self) -> None:
        """Adds the number of this rank's wrong elements to ``wrong``."""
        first = 0
        self._prepared.store()
        for part in self._prepared.parts:
            self.wrong += self._pattern.count_wrong(part, first)
            first += part.size
