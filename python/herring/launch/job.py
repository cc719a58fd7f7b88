"""What `herring run` was asked for, and what each process of the job is started with."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from herring.errors import ConfigurationError

__all__ = [
    "EXIT_NOT_EXECUTABLE",
    "EXIT_NOT_FOUND",
    "CommandError",
    "RunOptions",
    "job_environment",
    "resolve_command",
    "server_environment",
    "worker_environments",
]

MAXIMUM_WORKERS = 1024
EXIT_NOT_EXECUTABLE = 126  # as the shell
EXIT_NOT_FOUND = 127


@dataclass(frozen=True)
class RunOptions:
    """What `herring run` was asked for.

    Attributes:
        command: Program and arguments of each worker.
        workers: Number of workers, 1 to 1024.
        nodes: Number of nodes to pretend, 1 to `workers`; ranks stand in blocks.
        servers: Number of dedicated servers.
        timeout: Seconds after which the job is ended, or None.
        grace: Seconds between SIGTERM and SIGKILL.
        prefix: Whether output lines carry the rank.
        keep_going: Whether the others go on after a worker has failed.
        start_timeout: Seconds within which all must meet, or None: the setting.
        output: Folder that gets a copy of what each rank prints, or None.
        horovod: Whether ``import horovod`` is to find `herring.horovod`.
        server_command: What runs as a server; `herring server` by default.
    """

    command: Sequence[str]
    workers: int = 1
    nodes: int = 1
    servers: int = 0
    timeout: float | None = None
    grace: float = 10.0
    prefix: bool = True
    keep_going: bool = False
    start_timeout: float | None = None
    output: Path | None = None
    horovod: bool = False
    server_command: Sequence[str] = field(
        default=(sys.executable, "-m", "herring.launch.cli", "server", "--stay")
    )

    def check(self) -> None:
        """Refuses what cannot work.

        Raises:
            ConfigurationError: Names the option, its value and what is allowed.
        """
        if not self.command:
            raise ConfigurationError(
                "no command to run: put it behind '--', as in 'herring run -n 2 -- python train.py'"
            )
        _check_range("-n", self.workers, 1, MAXIMUM_WORKERS)
        _check_range("--servers", self.servers, 0, MAXIMUM_WORKERS)
        if not 1 <= self.nodes <= self.workers:
            raise ConfigurationError(
                f"--nodes {self.nodes} is not valid: allowed is an integer from 1 to "
                f"{self.workers}, the number of workers (-n), as every node holds at least one"
            )
        if self.start_timeout is not None and not 1 <= self.start_timeout <= 604800:
            raise ConfigurationError(
                f"--start-timeout {self.start_timeout:g} is not valid: allowed are 1 to 604800 "
                "seconds"
            )
        for name, value in (("--timeout", self.timeout), ("--grace", self.grace)):
            if value is not None and not 0 <= value < 1e9:
                raise ConfigurationError(
                    f"{name} {value:g} is not valid: allowed are seconds, 0 or more"
                )


class CommandError(ConfigurationError):
    """The command cannot be started.

    Attributes:
        status: The exit status a shell would give.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def resolve_command(command: Sequence[str]) -> list[str]:
    """Finds the program, before anything is started.

    Raises:
        CommandError: There is no such program; carries the shell's exit status.
    """
    program = command[0]
    found = shutil.which(program)
    if program in ("python", "python3") and sys.prefix != sys.base_prefix:
        # Called by path from a virtual environment that is not active: surely its Python is meant.
        active = os.environ.get("VIRTUAL_ENV")
        if not active or not Path(active, "bin", program).exists():
            found = sys.executable
    if found:
        return [found, *command[1:]]
    if Path(program).is_file():
        hint = ": start it with its interpreter"
        if program.endswith(".py"):
            hint = f": put 'python' in front of it ('-- python {program}')"
        raise CommandError(f"{program} is not executable{hint}", EXIT_NOT_EXECUTABLE)
    raise CommandError(f"{program}: no such program", EXIT_NOT_FOUND)


def job_environment(options: RunOptions, port: int) -> dict[str, str]:
    """This process's environment, and what is the same for all of a new job that meets at `port`.

    The job's name and secret are made up anew with every call.
    """
    # Variables of a job around this one must not leak in.
    ours = {
        "RANK",
        "SIZE",
        "LOCAL_RANK",
        "LOCAL_SIZE",
        "SECRET_FILE",
        "HOST_ID",
        "JOB",
        "INTERFACE",
        "AS_HOROVOD",
    }
    environment = {
        name: value
        for name, value in os.environ.items()
        if not (name.startswith("HERRING_") and name[8:] in ours)
    }
    environment.pop("HERRING_RENDEZVOUS_FD", None)
    environment["HERRING_RENDEZVOUS"] = f"127.0.0.1:{port}"
    environment["HERRING_SERVERS"] = str(options.servers)
    environment["HERRING_SECRET"] = secrets.token_hex(32)
    environment["HERRING_JOB"] = f"run-{os.getpid()}-{secrets.token_hex(4)}"
    if options.start_timeout is not None:
        environment["HERRING_CONNECT_TIMEOUT"] = f"{options.start_timeout:g}"
    if options.horovod or os.environ.get("HERRING_AS_HOROVOD", "") not in ("", "0"):
        folder = str(Path(__file__).resolve().parents[1] / "horovod" / "stand_in")
        paths = [folder, *filter(None, [environment.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
    environment.setdefault("PYTHONUNBUFFERED", "1")  # lines appear when they are printed
    if options.workers > 1:
        share = max(1, len(os.sched_getaffinity(0)) // options.workers)
        environment.setdefault("OMP_NUM_THREADS", str(share))
    return environment


def server_environment(job: Mapping[str, str], index: int) -> dict[str, str]:
    """The environment of dedicated server `index`: a host of its own, as it would be in earnest."""
    return {**job, "HERRING_HOST_ID": f"{job['HERRING_JOB']}-server-{index}"}


def worker_environments(options: RunOptions, job: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """The environments of the workers, by rank; ranks stand in blocks on the nodes."""
    rank = 0
    for node in range(options.nodes):
        # The first nodes hold one more where the numbers do not divide.
        count = options.workers // options.nodes
        count += node < options.workers % options.nodes
        for local_rank in range(count):
            environment = {
                **job,
                "HERRING_RANK": str(rank),
                "HERRING_SIZE": str(options.workers),
                "HERRING_LOCAL_RANK": str(local_rank),
                "HERRING_LOCAL_SIZE": str(count),
            }
            if options.nodes > 1:
                environment["HERRING_HOST_ID"] = f"{job['HERRING_JOB']}-node-{node}"
            yield environment
            rank += 1


def _check_range(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise ConfigurationError(
            f"{name} {value} is not valid: allowed is an integer from {least} to {most}"
        )
