"""``herring study partial``: all-reduces that workers come late to, beside MPI, and training.

Paper: partial collectives and eager SGD, section 6.1 with figures 8 and 9. `hyperplane` has section
6.2.1, `overlap` steps without delays. Computing and delays are slept, not burnt, so that there is
waiting to be saved whatever the number of cores.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from herring.bench.communicator import Communicator
from herring.errors import ConfigurationError
from herring_lab.competitors import missing
from herring_lab.emulate.cluster import ClusterError
from herring_lab.emulate.mpi import MPIS
from herring_lab.report import Chart, Table
from herring_lab.study.bench import Network
from herring_lab.study.hyperplane import MODES, SLEPT, Regression, hyperplane, hyperplane_tables
from herring_lab.study.jobs import run_mpi_ranks, run_workers, sleep_until, start_together
from herring_lab.study.overlap import no_delay

__all__ = ["microbenchmark", "partial_study"]

_ELEMENTS = 1024  # float32: 4 kB
_UNTIMED = 4  # first iterations
# A barrier of polling ranks that share processors takes tens of milliseconds.
_MARGIN = 0.05
_REST = 0.01  # no rank goes on to the next barrier while another's call is timed
_PAUSE = 2e-4  # of MPICH's ranks; with os.sched_yield they take almost twice as long

Report = Callable[[int, int, str], None]


def partial_study(quick: bool, report: Report, network: Network | None = None) -> list[Table]:
    """Measures all; `quick`: fewer workers, shorter steps, no figures to keep.

    Args:
      quick: a look at the machinery.
      report: told about each measurement before it begins, as (done, all, what).
      network: links of the hosts that `no_delay` uses.

    Returns:
      The tables; without that of `no_delay`, and with a note instead, where there can be no lab.
    """
    network = network or Network()
    how, delays = Regression(), (200, 300, 400)
    if quick:
        how, delays = Regression(512, 128, rounds=24, step=40, rate=0.2), (20, 30, 40)
    trainings = list(itertools.product(delays, MODES))
    reasons = {mpi: missing(mpi) for mpi in MPIS}
    peers = [mpi for mpi in MPIS if not reasons[mpi]]
    names = ["micro-benchmark: Herring", *(f"micro-benchmark: {mpi}" for mpi in peers)]
    names += ["steps without delays", *(f"hyperplane: {mode}, {ms} ms" for ms, mode in trainings)]
    progress = ((number, len(names), what) for number, what in enumerate(names))

    def begin() -> None:
        report(*next(progress))

    skipped = [f"skipped: {mpi}: {reason}" for mpi, reason in reasons.items() if reason]
    tables = microbenchmark(*((8, 16) if quick else (32, 64)), peers, begin, skipped)
    begin()
    hosts, nbytes, steps = (3, 0.02, 4) if quick else (8, 0.25, 20)
    left_out = []
    try:
        tables.append(no_delay(network, hosts, nbytes, steps))
    except ClusterError as error:
        left_out = [f"there is no table of steps without delays: {error}"]
    runs = {}
    for delay, mode in trainings:
        begin()
        runs[delay, mode] = hyperplane(mode, delay, how)
    tables += hyperplane_tables(runs, how)
    tables[0].notes.extend(left_out)
    return tables


def microbenchmark(
    workers: int,
    iterations: int,
    peers: Sequence[str] = (),
    begin: Callable[[], None] = lambda: None,
    notes: Sequence[str] = (),
) -> list[Table]:
    """Worker i comes i milliseconds late to an all-reduce of 4 kB; mean time in the call.

    Args:
      workers: processes on this machine.
      iterations: timed ones.
      peers: MPIs to measure beside Herring.
      begin: is called before each library.
      notes: more of them.

    Returns:
      Times, with the ratios to solo and majority; and the active workers over the iterations.

    Raises:
      ConfigurationError: Herring's job failed. An MPI's that fails is noted.
    """
    begin()
    found = run_workers("herring_lab.study.partial:late_workers", workers, iterations=iterations)
    failed = []
    for mpi in peers:
        begin()
        try:
            found += run_mpi_ranks(
                mpi, "herring_lab.study.partial:late_ranks", workers, iterations=iterations
            )
        except ConfigurationError as error:
            failed.append(f"skipped: {error}")
    active = {row["mode"]: row["active"] for row in found if row["active"]}
    means = {row["mode"]: row["mean_ms"] for row in found}
    ideals = {"solo": 0.0, "majority": sum(range((workers + 1) // 2)) / workers}
    rows = [
        {
            "mode": row["mode"],
            "mean_ms": row["mean_ms"],
            "median_ms": row["median_ms"],
            "model_ms": ideals.get(row["mode"], (workers - 1) / 2),
            "solo_is_faster_by": row["mean_ms"] / means["solo"],
            "majority_is_faster_by": row["mean_ms"] / means["majority"],
            "least_active": min(row["active"], default=None),
            "mean_active": float(np.mean(row["active"])) if row["active"] else None,
            "began_late_ms": row["began_late_ms"],
        }
        for row in found
    ]
    title = f"all-reduce of 4 kB: {workers} processes, worker i late by i ms"
    return [
        Table(
            "partial-micro",
            f"Partial {title}, {iterations} iterations",
            rows,
            None,
            [
                SLEPT,
                f"one machine of {os.cpu_count()} cores; mean and median over workers and "
                "iterations of the time in the call, model: of waiting alone",
                "active: contributors of an iteration that waited for its result",
                "ranks share the cores: one whose call is over sleeps until all are, lest its way "
                "into the next barrier takes a processor from those that still wait",
                "began late: mean of how much later than meant the calls began",
                "MPI_Allreduce of MPICH and Open MPI over shared memory. Ranks of Open MPI yield "
                "their processor while they wait (mpi_yield_when_idle). MPICH 4.0 cannot, its "
                "library calls no sched_yield: here it is MPI_Iallreduce, and ranks sleep "
                f"{_PAUSE * 1e3:g} ms between the calls of MPI_Test",
                "the paper: MPI_Allreduce takes 53.32 times as long as solo, 2.46 times as "
                "majority",
                *notes,
                *failed,
            ],
        ),
        Table(
            "partial-active",
            f"Active workers of a partial {title}",
            [
                {"iteration": number, "solo": solo, "majority": majority}
                for number, (solo, majority) in enumerate(zip(active["solo"], active["majority"]))
            ],
            Chart("iteration", ["solo", "majority"], "number of the iteration", "active workers"),
            [SLEPT, f"majority: at least {(workers + 1) // 2}, solo: at least 1"],
        ),
    ]


def _measure(
    call: Callable[[], Any], together: Callable[[], float], rank: int, ranks: int, iterations: int
) -> np.ndarray:
    """Returns the seconds in each timed call, and by how many it began too late: (2, n)."""
    noted = []
    for _ in range(_UNTIMED + iterations):
        start = together()
        moment = start + rank / 1000
        sleep_until(moment)
        begun = time.monotonic()
        call()
        noted.append((time.monotonic() - begun, begun - moment))
        sleep_until(start + ranks / 1000 + _REST)
    return np.array(noted[_UNTIMED:]).T


def _row(mode: str, everyone: np.ndarray, active: list[int]) -> dict[str, Any]:
    times, late = everyone[:, 0] * 1e3, everyone[:, 1] * 1e3
    return {
        "mode": mode,
        "mean_ms": float(times.mean()),
        "median_ms": float(np.median(times)),
        "began_late_ms": float(late.mean()),
        "active": active,
    }


def late_workers(iterations: int) -> list[dict[str, Any]]:
    """One worker of `microbenchmark`: all of Herring's modes."""
    import herring
    from herring.partial import PartialReduction

    size = herring.size()

    def measure(call: Callable[[], Any]) -> np.ndarray:
        own = _measure(call, lambda: start_together(_MARGIN), herring.rank(), size, iterations)
        return np.array(herring.allgather_object(own.tolist()))

    array = np.ones(_ELEMENTS, np.float32)
    rows = [_row("full", measure(lambda: herring.allreduce(array)), [])]
    for mode in MODES[1:]:
        series = PartialReduction(_ELEMENTS, "float32", sync=mode)
        active: list[int] = []
        measured = measure(_noting(series, array, active))
        for _ in series.flush(array):
            pass
        rows.append(_row(mode, measured, active[_UNTIMED:]))
    return rows


def _noting(series: Any, array: np.ndarray, active: list[int]) -> Callable[[], None]:
    """A call of the series that notes how many were active."""
    return lambda: active.append(series.allreduce(array).active)


def late_ranks(communicator: Communicator, iterations: int) -> list[dict[str, Any]]:
    """One rank of `microbenchmark` in an MPI job."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD

    def allreduce(array: np.ndarray, op: Any) -> None:
        if communicator.name != "mpich":
            world.Allreduce(MPI.IN_PLACE, array, op)
            return
        request = world.Iallreduce(MPI.IN_PLACE, array, op)
        while not request.Test():
            time.sleep(_PAUSE)

    def together() -> float:
        moment = np.array([time.monotonic() + _MARGIN])
        allreduce(moment, MPI.MAX)
        return float(moment[0])

    array = np.zeros(_ELEMENTS, np.float32)
    rank, size = communicator.rank, communicator.size
    measured = _measure(lambda: allreduce(array, MPI.SUM), together, rank, size, iterations)
    everyone = communicator.gather(measured.ravel()).reshape(size, 2, -1)
    return [_row(communicator.name, everyone, [])]
