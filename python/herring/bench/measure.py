"""The loop that measures, and what it makes of its times."""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from herring.bench import pattern
from herring.bench.communicator import Communicator


@dataclasses.dataclass(frozen=True)
class Request:
    """One measurement.

    Attributes:
      size_bytes: bytes of the array; rounded down to whole elements, at least one.
      dtype: element type, one of ``pattern.DTYPES``.
      op: reduction, one of ``pattern.OPS``.
      warmup: untimed iterations before each batch.
      iterations: timed iterations of a batch.
      batches: how often warm-up and timed iterations are repeated.
      check: compare the results with what they must be.
    """

    size_bytes: int
    dtype: str = "float32"
    op: str = "average"
    warmup: int = 3
    iterations: int = 10
    batches: int = 1
    check: bool = False

    @property
    def count(self) -> int:
        """Elements of the array."""
        return max(1, self.size_bytes // pattern.item_bytes(self.dtype))


@dataclasses.dataclass
class Measurement:
    """What one request gave. Times are in seconds, one per iteration: that of the slowest rank.

    Attributes:
      request: what was asked for.
      times: every timed iteration's, in order, batch after batch.
      wrong: wrong elements over all ranks and checked results; None if not checked.
      sent_per_worker: bytes a worker sent per iteration, mean over workers; None if unknown.
      received_per_worker: the same of bytes received.
    """

    request: Request
    times: list[float]
    wrong: int | None
    sent_per_worker: int | None
    received_per_worker: int | None

    def to_json(self) -> dict[str, Any]:
        """Returns the entry of the file's ``results`` list."""
        size = self.request.count * pattern.item_bytes(self.request.dtype)
        step = self.request.iterations
        middle = statistics.median(self.times)
        return {
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
            "times_seconds": self.times,
            "batches_seconds": [
                self.times[start : start + step] for start in range(0, len(self.times), step)
            ],
        }


def percentile(values: list[float], fraction: float) -> float:
    """Returns the smallest value that at least ``fraction`` of the values do not exceed.

    Never flatters: with fewer than a hundred values the 99th percentile is the largest.
    """
    ordered = sorted(values)
    return ordered[max(0, math.ceil(fraction * len(ordered)) - 1)]


def measure_allreduce(
    communicator: Communicator, request: Request, before_batch: Callable[[int], None] | None = None
) -> Measurement:
    """Measures one size; every rank calls it with the same request.

    Each iteration: a barrier, then the clock, the operation, the clock. The ranks' times meet
    after the loop, in one gather, so that nothing but the barrier stands between iterations.

    Args:
      communicator: the library.
      request: what to measure.
      before_batch: called on each rank with the batch's number before it starts.
    """
    buffer = communicator.allocate(request.count, request.dtype)
    # A name per shape: an operation's name belongs to one shape for as long as the job lives.
    name = f"bench.allreduce.{request.op}.{request.dtype}.{request.count}"
    operation = communicator.allreduce(buffer, request.op, name)
    known = Known(communicator, request, buffer.elements) if request.check else None
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
    slowest = rows[:, : len(times)].max(axis=0)
    per_worker = rows[:, -2:].sum(axis=0) / (communicator.size * len(times))
    return Measurement(
        request=request,
        times=[float(seconds) for seconds in slowest],
        wrong=int(rows[:, -3].sum()) if known else None,
        sent_per_worker=round(per_worker[0]) if counted else None,
        received_per_worker=round(per_worker[1]) if counted else None,
    )


class Known:
    """Fills a buffer with known contents and counts what comes out wrong."""

    def __init__(self, communicator: Communicator, request: Request, elements: np.ndarray) -> None:
        self._pattern = pattern.Pattern(request.dtype, request.op, communicator.size)
        self._rank = communicator.rank
        self._elements = elements
        self.wrong = 0

    def fill(self) -> None:
        """Writes this rank's contribution."""
        self._pattern.fill(self._elements, self._rank)

    def check(self) -> None:
        """Adds this rank's wrong elements to ``wrong``."""
        self.wrong += self._pattern.count_wrong(self._elements)
