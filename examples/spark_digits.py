"""Trains a small network on handwritten digits in a barrier stage of Spark.

    python examples/spark_digits.py --workers 2 --servers 1
    spark-submit --master spark://host:7077 examples/spark_digits.py --workers 4

Every worker of the training, and every server, is a task of the stage. Barrier mode starts all
tasks at the same time, or none. Rank 0 sends the rendezvous address and the job's secret to the
other tasks with allGather. Set spark.network.crypto.enabled if others can listen on the network.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import socket
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import digits_task
from pyspark import BarrierTaskContext, SparkConf
from pyspark.sql import SparkSession


@contextlib.contextmanager
def job(workers: int, servers: int) -> Iterator[int]:
    """Sets the environment variables that Herring reads, and removes them afterwards.

    The Spark process may run other tasks later.
    """
    context = BarrierTaskContext.get()
    number = context.partitionId()
    note = ""
    with contextlib.ExitStack() as stack:
        if number == 0:
            # Opens the rendezvous port now, so that no other program can take the port.
            host = context.getTaskInfos()[0].address.partition(":")[0]
            host = socket.gethostbyname(host)
            listener = stack.enter_context(socket.create_server((host, 0), backlog=1024))
            meet = f"{host}:{listener.getsockname()[1]}"
            note = json.dumps([meet, secrets.token_hex(32)])
        meet, secret = json.loads(context.allGather(note)[0])
        variables = {
            "HERRING_RENDEZVOUS": meet,
            "HERRING_SECRET": secret,
            "HERRING_SERVERS": str(servers),
        }
        if number < workers:
            variables.update(HERRING_RANK=str(number), HERRING_SIZE=str(workers))
        if number == 0:
            variables["HERRING_RENDEZVOUS_FD"] = str(listener.fileno())
        os.environ.update(variables)
        try:
            yield number
        finally:
            for name in variables:
                os.environ.pop(name, None)


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains a small network in Spark tasks.")
    parser.add_argument("--workers", type=int, default=2, help="number of workers that train")
    parser.add_argument("--servers", type=int, default=0, help="number of dedicated servers")
    parser.add_argument("--epochs", type=int, default=20, help="passes over the training set")
    options = parser.parse_args()
    workers, servers, epochs = options.workers, options.servers, options.epochs

    def task(_: Iterable[Any]) -> Iterator[dict[str, object]]:
        with job(workers, servers) as number:
            if number < workers:
                yield digits_task.train(epochs)
                return
            from herring.launch.server import run_server

            run_server()  # Returns when the job ends.

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("digits")
    if not SparkConf().contains("spark.master"):  # spark-submit sets this.
        builder = builder.master(f"local[{workers + servers}]")
    session = builder.getOrCreate()
    session.sparkContext.addPyFile(digits_task.__file__)
    try:
        stage = session.sparkContext.parallelize(range(workers + servers), workers + servers)
        results = stage.barrier().mapPartitions(task).collect()
    finally:
        session.stop()
    digits_task.report(results)


if __name__ == "__main__":
    main()
