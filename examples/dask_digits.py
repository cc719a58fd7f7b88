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
import hashlib
import json
import os
import secrets
import socket
from collections.abc import Iterator

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


def train(job: dict[str, str], epochs: int) -> dict[str, object]:
    """Runs one worker; returns the accuracy on the test set and a hash of the parameters."""
    import torch
    from sklearn.datasets import load_digits

    import herring.torch as herring

    with variables(job):
        herring.init()
    try:
        rank, size = herring.rank(), herring.size()
        torch.set_num_threads(1)
        digits = load_digits()
        images = torch.from_numpy(digits.images).float().flatten(1) / 16
        labels = torch.from_numpy(digits.target)
        shuffle = torch.Generator().manual_seed(0)  # The same on all ranks.
        order = torch.randperm(len(labels), generator=shuffle)
        test, rest = order[:600], order[600:]
        layers = torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)
        model = herring.DistributedDataParallel(torch.nn.Sequential(*layers))
        optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
        for _ in range(epochs):
            order = rest[torch.randperm(len(rest), generator=shuffle)]
            for first in range(0, len(rest) - 32 * size + 1, 32 * size):
                mine = order[first : first + 32 * size][rank::size]
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(images[mine]), labels[mine]).backward()
                optimizer.step()
        right = (model(images[test]).argmax(1) == labels[test]).float().mean().item()
        digest = hashlib.sha256()
        for parameter in model.parameters():
            digest.update(parameter.detach().numpy().tobytes())
        servers = sum(server["dedicated"] for server in herring.stats()["servers"])
        return {"accuracy": right, "parameters": digest.hexdigest(), "servers": servers}
    finally:
        herring.shutdown()


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
            task = client.submit(train, mine, epochs, workers=[place], pure=False, retries=0)
        else:
            task = client.submit(serve, job, workers=[place], pure=False, retries=0)
        tasks.append(task)
    return client.gather(tasks)[:workers]


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
        results = run(client, options.workers, options.servers, options.epochs)
    same = len({result["parameters"] for result in results}) == 1
    print(json.dumps({"workers": len(results), "identical": same, **results[0]}))
    if not same:
        raise SystemExit("dask_digits.py: the ranks ended with different parameters")


if __name__ == "__main__":
    main()
