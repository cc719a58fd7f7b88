"""Runs a function in all workers of a job of Herring or MPI, on this machine or in the lab."""

from __future__ import annotations

import functools
import importlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from herring.errors import ConfigurationError
from herring_lab.competitors import open_peer
from herring_lab.emulate import folders
from herring_lab.emulate.cluster import ClusterError
from herring_lab.emulate.mpi import launch_here
from herring_lab.emulate.runner import Plan, run
from herring_lab.study.bench import Network

_SINGLE = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}  # because workers share few processors


def run_workers(function: str, workers: int, **options: Any) -> list[dict[str, Any]]:
    """Runs ``module:function`` in every worker of a job of Herring on this machine.

    Args:
      function: ``module:function``.
      workers: the number of workers.
      **options: arguments of the function.

    Returns:
      The result of rank 0.

    Raises:
      ConfigurationError: the job failed; the message ends with the job's last output.
    """
    with folders.temporary("study") as folder:
        result = pathlib.Path(folder, "result.json")
        job = subprocess.run(
            [
                *(sys.executable, "-m", "herring.command.cli", "run", "-n", str(workers)),
                *("--timeout", "600", "--", sys.executable, "-m", "herring_lab.study.jobs"),
                *(function, json.dumps(options), str(result)),
            ],
            env={**os.environ, **_SINGLE},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if job.returncode != 0:
            raise ConfigurationError(f"the measuring job failed:\n{job.stdout[-2000:]}")
        return json.loads(result.read_text())


def run_mpi_ranks(
    mpi: str, function: str, ranks: int, timeout: float = 300, **options: Any
) -> list[dict[str, Any]]:
    """Runs ``module:function`` in every rank of an MPI job on this machine.

    Args:
      mpi: ``mpich`` or ``openmpi``.
      function: ``module:function``; its first argument is the
        `herring.bench.communicator.Communicator`.
      ranks: the number of ranks.
      timeout: seconds after which the job is ended.
      **options: more arguments of the function.

    Returns:
      The result of rank 0.

    Raises:
      ConfigurationError: this MPI is not installed, or the job failed; the message ends with the
        job's last output.
    """
    with folders.temporary("mpi") as folder:
        result, links = pathlib.Path(folder, "result.json"), pathlib.Path(folder, "links")
        links.mkdir()
        worker = [sys.executable, "-m", "herring_lab.study.jobs"]
        worker += [function, json.dumps(options), str(result), mpi]
        argv, environment = launch_here(mpi, worker, ranks, str(links))
        job = subprocess.Popen(
            argv,
            env={**environment, **_SINGLE},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            output, _ = job.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            raise ConfigurationError(f"{mpi} was not done after {timeout:g} s") from None
        finally:
            _end(job)
        # The status does not count: MPICH's ranks exit without MPI_Finalize (see MpiCommunicator),
        # so its launcher may kill slower ranks. These have passed the last barrier then.
        if not result.exists():
            raise ConfigurationError(f"{mpi} ended with {job.returncode}:\n{output[-2000:]}")
        return json.loads(result.read_text())


def _end(job: subprocess.Popen[str]) -> None:
    """Ends a job. The launcher is terminated first, because a killed launcher leaves its ranks."""
    if job.poll() is None:
        job.terminate()
        try:
            job.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(job.pid, signal.SIGKILL)
            job.communicate()


def run_in_lab(
    network: Network,
    function: str,
    workers: int,
    servers: int,
    settings: Mapping[str, str] = MappingProxyType({}),
    **options: Any,
) -> list[dict[str, Any]]:
    """Runs ``module:function`` in every worker, with workers and servers on emulated hosts.

    Args:
      network: the links of the hosts.
      function: ``module:function``.
      workers: the number of hosts with a worker each.
      servers: the number of hosts with a dedicated server each.
      settings: environment variables of Herring.
      **options: arguments of the function.

    Returns:
      The result of rank 0.

    Raises:
      ClusterError: this machine cannot make a lab, the job failed (the message ends with its last
        output), or strict links were late.
    """
    with folders.temporary("study") as folder:
        result, log = pathlib.Path(folder, "result.json"), pathlib.Path(folder, "log")
        command = [sys.executable, "-m", "herring_lab.study.jobs"]
        command += [function, json.dumps(options), str(result)]
        plan = Plan(command, workers, servers, timeout=900, settings={**_SINGLE, **settings})
        with network.cluster(plan.hosts) as cluster, log.open("wb") as output:
            status = run(cluster, plan, output.fileno())
            if status == 0:
                cluster.require_on_time()
        if status != 0:
            raise ClusterError(
                f"{function} ended with {status}: {log.read_text(errors='replace')[-1500:]}"
            )
        return json.loads(result.read_text())


def start_together(margin: float) -> float:
    """Returns a moment `margin` seconds from now, the same for all workers; this is a barrier."""
    import numpy as np

    import herring

    moment = np.array([time.monotonic() + margin])
    herring.allreduce(moment, "max")
    return float(moment[0])


def sleep_until(moment: float) -> None:
    """Sleeps until `moment` of the monotonic clock; returns at once if it is past."""
    while (left := moment - time.monotonic()) > 0:
        time.sleep(left)


def _worker(function: str, options: str, result: str, mpi: str = "") -> None:
    module, _, name = function.partition(":")
    call = functools.partial(getattr(importlib.import_module(module), name), **json.loads(options))
    if mpi:
        communicator = open_peer(mpi)
        rank, rows = communicator.rank, call(communicator)
    else:
        import herring

        herring.init()
        rank, rows = herring.rank(), call()
    if rank == 0:
        part = pathlib.Path(f"{result}.part")
        part.write_text(json.dumps(rows))
        part.rename(result)  # so that the result is never partial
    if mpi:
        communicator.close()
    else:
        herring.shutdown()


if __name__ == "__main__":
    _worker(*sys.argv[1:])
