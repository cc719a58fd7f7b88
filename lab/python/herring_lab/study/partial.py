"""Measures all-reduces to which workers come late, beside MPI (``herring study partial``).

The paper is that on partial collectives and eager SGD, section 6.1 with figures 8 and 9.
`hyperplane` has section 6.2.1, and `overlap` has steps without delays. Workers sleep for the time
of computing and delays, so that waiting can be saved with any number of cores.
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

_ELEMENTS = 1024  # float32: 4 kB
_UNTIMED = 4  # iterations before those that are timed
# Seconds until a common start: a barrier of polling ranks that share processors takes tens of
# milliseconds.
_MARGIN = 0.05
_REST = (
    0.01  # seconds of sleep before the next barrier, which must not disturb calls of other ranks
)
_BETWEEN = ", between workers"  # modes without servers
_PAUSE = 2e-4  # seconds of sleep of MPICH's ranks; os.sched_yield would take almost twice as long

Report = Callable[[int, int, str], None]


def partial_study(quick: bool, report: Report, network: Network | None = None) -> list[Table]:
    """Measures partial all-reduces, steps without delays, and training on a hyperplane.

    Args:
      quick: whether to only test the setup, with fewer workers and shorter steps.
      report: called before each measurement begins, with (done, all, what).
      network: links of the hosts for steps without delays.

    Returns:
      The tables. If this machine cannot make a lab, the table of `no_delay` is replaced by a note.
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
        left_out = [f"the table of steps without delays is missing: {error}"]
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
    """Measures the time in an all-reduce of 4 kB to which worker i comes i milliseconds late.

    Args:
      workers: the number of processes on this machine.
      iterations: timed iterations.
      peers: MPIs to measure beside Herring.
      begin: called before each library is measured.
      notes: more notes for the table.

    Returns:
      A table of times, with the ratios to solo and majority, and a table of active workers over
      the iterations.

    Raises:
      ConfigurationError: Herring's job failed. If the job of an MPI fails, a note says so.
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
    # Between workers, a majority waits for one that is drawn, with the same probability for each.
    ideals = {
        "solo": 0.0,
        "majority": sum(range((workers + 1) // 2)) / workers,
        f"solo{_BETWEEN}": 0.0,
        f"majority{_BETWEEN}": (workers**2 - 1) / (6 * workers),
    }
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
                "iterations of the time in the call; model: the time of waiting alone",
                "active: contributors of an iteration that waited for its result",
                "between workers: algorithm='doubling', in which a majority waits for one worker "
                "that is drawn",
                "ranks share the cores, so a rank whose call is over sleeps until all calls are "
                "over; its next barrier would take a processor from ranks that still wait",
                "began late: the mean delay of the calls behind their planned start",
                "MPICH and Open MPI run MPI_Allreduce over shared memory. Ranks of Open MPI yield "
                "their processor while they wait (mpi_yield_when_idle). MPICH 4.0 cannot yield, so "
                "its ranks call MPI_Iallreduce and sleep "
                f"{_PAUSE * 1e3:g} ms between the calls of MPI_Test",
                "in the paper MPI_Allreduce takes 53.32 times as long as solo and 2.46 times as "
                "long as majority",
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
    """Returns an array (2, n) of the seconds in each timed call, and of how late it began."""
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
    """Runs one worker of `microbenchmark` in all modes of Herring."""
    import herring
    from herring.partial import PartialReduction

    size = herring.size()

    def measure(call: Callable[[], Any]) -> np.ndarray:
        own = _measure(call, lambda: start_together(_MARGIN), herring.rank(), size, iterations)
        return np.array(herring.allgather_object(own.tolist()))

    array = np.ones(_ELEMENTS, np.float32)
    rows = [_row("full", measure(lambda: herring.allreduce(array)), [])]
    for algorithm, mode in itertools.product(("herring", "doubling"), MODES[1:]):
        series = PartialReduction(_ELEMENTS, "float32", sync=mode, algorithm=algorithm)
        active: list[int] = []
        measured = measure(_noting(series, array, active))
        for _ in series.flush(array):
            pass
        name = mode if algorithm == "herring" else mode + _BETWEEN
        rows.append(_row(name, measured, active[_UNTIMED:]))
    return rows


def _noting(series: Any, array: np.ndarray, active: list[int]) -> Callable[[], None]:
    """Returns a call of the series that appends the number of active workers."""
    return lambda: active.append(series.allreduce(array).active)


def late_ranks(communicator: Communicator, iterations: int) -> list[dict[str, Any]]:
    """Runs one rank of `microbenchmark` in an MPI job."""
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
