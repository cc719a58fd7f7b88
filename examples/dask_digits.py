"""Trains a small network on handwritten digits in Dask tasks.

    python examples/dask_digits.py --workers 2 --servers 1
    python examples/dask_digits.py --scheduler tcp://host:8786 --workers 4

Every worker of the training, and every server, is a task that is pinned to its own Dask process, so
that all of them run at the same time. The tasks contain the job's secret: use TLS for Dask's
connections if others can reach them.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import socket
from collections.abc import Iterator

import digits_task
from distributed import Client, LocalCluster, Worker


def listen(dask_worker: Worker) -> str:
    """Opens the job's rendezvous port on rank 0 now, so that no other program can take the port."""
    host = dask_worker.address.rpartition("://")[2].rpartition(":")[0].strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, 0), family=family, backlog=1024)
    os.environ["HERRING_RENDEZVOUS_FD"] = str(listener.fileno())
    port = listener.getsockname()[1]
    listener.detach()
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@contextlib.contextmanager
def variables(job: dict[str, str]) -> Iterator[None]:
    """Sets the environment variables that `herring.init` reads, and removes them afterwards.

    The Dask process may run other tasks later.
    """
    os.environ.update(job)
    try:
        yield
    finally:
        if "HERRING_RENDEZVOUS_FD" in os.environ and job.get("HERRING_RANK") == "0":
            os.close(int(os.environ.pop("HERRING_RENDEZVOUS_FD")))
        for name in job:
            os.environ.pop(name, None)


def serve(job: dict[str, str]) -> None:
    """Runs a dedicated server until the job ends."""
    from herring.launch.server import run_server

    with variables(job):
        run_server()


def work(job: dict[str, str], epochs: int) -> dict[str, object]:
    """Runs one worker of the training."""
    with variables(job):
        return digits_task.train(epochs)


def run(client: Client, workers: int, servers: int, epochs: int) -> list[dict[str, object]]:
    """Trains on the first processes of a cluster; returns each worker's result, by rank."""
    places = list(client.scheduler_info(n_workers=-1)["workers"])
    if len(places) < workers + servers:
        raise SystemExit(
            f"dask_digits.py: the cluster has {len(places)} processes, but {workers} workers and "
            f"{servers} servers need {workers + servers}"
        )
    job = {
        "HERRING_RENDEZVOUS": client.run(listen, workers=places[:1])[places[0]],
        "HERRING_SECRET": secrets.token_hex(32),
        "HERRING_SERVERS": str(servers),
    }
    tasks = []
    for index, place in enumerate(places[: workers + servers]):
        if index < workers:
            mine = {**job, "HERRING_RANK": str(index), "HERRING_SIZE": str(workers)}
            task = client.submit(work, mine, epochs, workers=[place], pure=False, retries=0)
        else:
            task = client.submit(serve, job, workers=[place], pure=False, retries=0)
        tasks.append(task)
    results: list[dict[str, object]] = client.gather(tasks)
    return results[:workers]


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains a small network in Dask tasks.")
    parser.add_argument("--scheduler", help="a cluster's address (default: start a local cluster)")
    parser.add_argument("--workers", type=int, default=2, help="number of workers that train")
    parser.add_argument("--servers", type=int, default=0, help="number of dedicated servers")
    parser.add_argument("--epochs", type=int, default=20, help="passes over the training set")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        cluster = options.scheduler
        if cluster is None:
            processes = options.workers + options.servers
            cluster = stack.enter_context(
                LocalCluster(n_workers=processes, threads_per_worker=1, dashboard_address=None)
            )
        client = stack.enter_context(Client(cluster))
        client.wait_for_workers(options.workers + options.servers, timeout=60)
        client.upload_file(digits_task.__file__)
        results = run(client, options.workers, options.servers, options.epochs)
    digits_task.report(results)


if __name__ == "__main__":
    main()
