"""Options of horovodrun that `herring run` takes."""

from __future__ import annotations

import argparse
from pathlib import Path

__all__ = ["add_options"]

# Without a meaning here, by the number of their values.
_IGNORED = {
    0: (
        *("--gloo", "--mpi", "--tcp", "--verbose", "--disable-cache", "--no-stall-check"),
        *("--hierarchical-allreduce", "--no-hierarchical-allreduce"),
        *("--hierarchical-allgather", "--no-hierarchical-allgather"),
        *("--torus-allreduce", "--no-torus-allreduce", "--timeline-mark-cycles"),
        *("--log-with-timestamp", "--log-without-timestamp"),
    ),
    1: (
        *("--fusion-threshold-mb", "--cycle-time-ms", "--cache-capacity", "--log-level"),
        *("--num-nccl-streams", "--gloo-timeout-seconds", "--thread-affinity", "--mpi-args"),
        *("--binding-args", "--stall-check-warning-time-seconds"),
        "--stall-check-shutdown-time-seconds",
    ),
}
_REFUSED = {
    "--min-np": "a job keeps the workers it has started with; save checkpoints, and start it again",
    "--max-np": "a job keeps the workers it has started with; save checkpoints, and start it again",
    "--min-num-proc": "a job keeps the workers it has started with",
    "--max-num-proc": "a job keeps the workers it has started with",
    "--slots-per-host": "say them behind each host: -H host1:4,host2:4",
    "--config-file": "give the options themselves; settings are HERRING_* variables",
    "--check-build": "'herring check' tells what is there",
    "--host-discovery-script": "the hosts of a job do not change",
    "--timeline-filename": "call hvd.start_timeline(path) in the script",
    "--autotune": "there is nothing to tune",
}


class _Refuse(argparse.Action):
    """Ends with what to do instead."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: object, values: object, text: str = ""
    ) -> None:
        parser.error(f"{text} is not there: {_REFUSED[text]}")


class _Ignore(argparse.Action):
    """Takes an option and does nothing."""

    def __call__(self, *_: object) -> None:
        """Nothing."""


def add_options(run: argparse.ArgumentParser) -> None:
    """Adds them to the parser of `herring run`."""
    options = run.add_argument_group("as horovodrun has them")
    options.add_argument(
        "--start-timeout",
        type=int,
        metavar="SECONDS",
        help="time for all workers to meet (HERRING_CONNECT_TIMEOUT)",
    )
    options.add_argument(
        "--output-filename",
        metavar="FOLDER",
        type=Path,
        help="keep what each rank prints in FOLDER/rank.N/stdout and stderr as well",
    )
    options.add_argument(
        "--horovod",
        action="store_true",
        help="let 'import horovod' find herring.horovod; also with HERRING_AS_HOROVOD=1",
    )
    for count, names in _IGNORED.items():
        for name in names:
            options.add_argument(name, nargs=count, action=_Ignore, help=argparse.SUPPRESS)
    for name in _REFUSED:
        options.add_argument(name, nargs="?", action=_Refuse, help=argparse.SUPPRESS)
