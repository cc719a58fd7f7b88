"""Options of horovodrun that `herring run` takes."""

from __future__ import annotations

import argparse
import socket
from pathlib import Path

from herring.errors import ConfigurationError

__all__ = ["add_options", "workers_of"]

# Without a meaning here, by the number of their values.
_IGNORED = {
    0: ("--gloo", "--mpi", "--verbose", "--disable-cache", "--no-hierarchical-allreduce"),
    1: ("--fusion-threshold-mb", "--cycle-time-ms", "--cache-capacity", "--log-level"),
}
_REFUSED = {
    "--min-np": "a job keeps the workers it has started with; save checkpoints, and start it again",
    "--max-np": "a job keeps the workers it has started with; save checkpoints, and start it again",
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
        "-H",
        "--hosts",
        metavar="HOST:SLOTS",
        help="this machine, and how many workers it takes: localhost:4",
    )
    options.add_argument(
        "--hostfile", metavar="FILE", type=Path, help="the same in a file: localhost slots=4"
    )
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


def workers_of(workers: int | None, hosts: str | None, hostfile: Path | None) -> int:
    """The number of workers: what -n says, else the slots of this machine, else 1.

    Args:
      workers: -n, if it was given.
      hosts: --hosts, if it was given.
      hostfile: --hostfile, if it was given.

    Raises:
      ConfigurationError: another machine is among the hosts, a list cannot be read, or there are
        fewer slots than workers.
    """
    if hosts is not None and hostfile is not None:
        raise ConfigurationError("--hosts and --hostfile: give one of them")
    if hosts is not None:
        slots = sum(_slots(*item.strip().partition(":")[::2], "--hosts") for item in _items(hosts))
    elif hostfile is not None:
        slots = sum(_slots(*line, f"--hostfile {hostfile}") for line in _lines(hostfile))
    else:
        return 1 if workers is None else workers
    if workers is not None and workers > slots:
        raise ConfigurationError(f"-n {workers}: the hosts have {slots} slots; give them more")
    return slots if workers is None else workers


def _items(hosts: str) -> list[str]:
    return [item for item in hosts.split(",") if item.strip()]


def _lines(path: Path) -> list[tuple[str, str]]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"--hostfile {path}: {error.strerror}") from None
    found = []
    for line in text.splitlines():
        host, _, rest = line.partition("#")[0].strip().partition(" ")
        if host:
            found.append((host, rest.strip().removeprefix("slots").strip(" =") or "1"))
    return found


def _slots(host: str, text: str, where: str) -> int:
    if host not in _names_of_this_machine():
        raise ConfigurationError(
            f"{where}: {host!r} is not this machine ({socket.gethostname()}), and 'herring run' "
            "starts workers on this one only; on several hosts start the script with torchrun, "
            "srun or mpirun, which Herring needs no options for"
        )
    try:
        slots = int(text or "1")
    except ValueError:
        slots = 0
    if slots < 1:
        raise ConfigurationError(
            f"{where}: {host} has {text!r} slots; it must be an integer, 1 or more"
        )
    return slots


def _names_of_this_machine() -> set[str]:
    name = socket.gethostname()
    return {"localhost", "127.0.0.1", "::1", name, name.partition(".")[0], socket.getfqdn()}
