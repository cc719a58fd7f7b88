"""What a job of `herring run` is asked to be, and the program that its workers run."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from herring.errors import ConfigurationError
from herring.launch.commands import module_command
from herring.launch.discovery import OPTION, Discovery
from herring.launch.hosts import THIS_MACHINE, Host, Layout, require_range

EXIT_NOT_EXECUTABLE = 126  # the status that a shell gives
EXIT_NOT_FOUND = 127
EXIT_NO_HOST = 255  # the status that ssh gives
SERVER_COMMAND = (*module_command("herring.command.cli"), "server", "--stay")


@dataclass(frozen=True)
class SshOptions:
    """How other hosts are reached."""

    command: Sequence[str] = ("ssh",)  # the program, and options that come before all others
    port: int | None = None  # the port of sshd, or None for the one in ssh's configuration
    identity: Path | None = None  # the file with the private key, or None
    python: str = sys.executable  # the Python on the other hosts that has Herring


@dataclass(frozen=True)
class Task:
    """A process of the job before its start."""

    name: str  # ``rank 3`` or ``server 0``
    host: Host  # the host that runs the process
    rank: int | None  # the rank of a worker; None for a server
    # Identifies the process in the job: the rank, or for servers the numbers after ranks.
    number: int
    environment: dict[str, str]  # variables that the process gets besides those of its machine


@dataclass(frozen=True)
class Elastic:
    """How a job goes on when workers die and when workers come."""

    least: int = 1  # the fewest workers with which it goes on
    restarts: int = 5  # how often in a row a worker that dies soon after its start is started again
    patience: float = 60.0  # seconds that the job waits for enough workers
    most: int | None = None  # the most workers that take part, or None
    resets: int | None = None  # how often the job may begin anew for other workers, or None
    discovery: Discovery | None = None  # the script that names the hosts, which may change; or None


@dataclass(frozen=True)
class RunOptions:
    """The options of `herring run`."""

    command: Sequence[str]  # program and arguments of each worker
    # How many workers and servers each host runs.
    layout: Layout = field(default_factory=lambda: Layout(((THIS_MACHINE, 1),), ()))
    # Number of nodes to simulate on one host, 1 to `workers`, of consecutive ranks each.
    nodes: int = 1
    timeout: float | None = None  # seconds after which the job is ended, or None
    grace: float = 10.0  # seconds between SIGTERM and SIGKILL
    prefix: bool = True  # whether output lines begin with the rank
    prefix_time: bool = False  # whether output lines begin with the time
    keep_going: bool = False  # whether the other workers continue after one has failed
    # Whether ending without having called ``herring.init()`` is a failure.
    require_init: bool = False
    # Seconds within which all processes must meet, or None for the setting.
    start_timeout: float | None = None
    # The rank that reads the input of the launcher, which may be a terminal; None means rank 0,
    # unless the input is a terminal.
    stdin: int | None = None
    output: Path | None = None  # folder that gets a copy of what each rank prints, or None
    horovod: bool = False  # whether ``import horovod`` finds `herring.horovod` in the workers
    # Interface or address that processes on several hosts use, or None.
    interface: str | None = None
    assignments: Sequence[str] = ()  # variables of -x: ``NAME`` or ``NAME=VALUE``
    ssh: SshOptions = SshOptions()  # how other hosts are reached
    # How the job goes on without workers that die; None means that it ends.
    elastic: Elastic | None = None
    # Program and arguments of a server; `herring server` by default.
    server_command: Sequence[str] = SERVER_COMMAND

    @property
    def workers(self) -> int:
        """Number of workers."""
        return self.layout.size

    @property
    def several(self) -> bool:
        """Whether the job may have other hosts than this machine."""
        return bool(self.layout.remote) or self._follows

    @property
    def _follows(self) -> bool:
        return self.elastic is not None and self.elastic.discovery is not None

    @property
    def servers(self) -> int:
        """Number of dedicated servers."""
        return len(self.layout.servers)

    def check(self) -> None:
        """Raises ConfigurationError, with the option, its value and what is allowed."""
        if not self.command:
            raise ConfigurationError(
                "no command to run: put it after '--', as in 'herring run -n 2 -- python train.py'"
            )
        if not 1 <= self.nodes <= self.workers:
            raise ConfigurationError(
                f"--nodes {self.nodes} is not valid: allowed is an integer from 1 to "
                f"{self.workers}, the number of workers (-n), as every node holds at least one"
            )
        if self.nodes > 1 and (self.layout.remote or len(self.layout.workers) > 1):
            raise ConfigurationError(
                f"--nodes {self.nodes}: each host of -H is a node; leave --nodes out"
            )
        if self.ssh.port is not None:
            require_range("-p", self.ssh.port, 1, 65535)
        if self.several:
            self._check_ssh()
        if self._follows and (self.servers or self.nodes > 1):
            raise ConfigurationError(
                f"{OPTION} is for workers: leave out --servers and --nodes, or name the hosts with "
                "-H. Without --servers each host has a server that comes and goes with its workers"
            )
        if self.stdin is not None:
            require_range("--stdin", self.stdin, 0, self.workers - 1)
            host = [host for host, count in self.layout.workers for _ in range(count)][self.stdin]
            if not host.local:
                raise ConfigurationError(
                    f"--stdin {self.stdin}: rank {self.stdin} runs on {host.name}, and only a rank "
                    "on this machine can read the input of this command"
                )
        if self.elastic is not None and not 1 <= self.elastic.least <= self.workers:
            raise ConfigurationError(
                f"--min-workers {self.elastic.least} is not valid: allowed is an integer from 1 to "
                f"{self.workers}, the number of workers (-n)"
            )
        if self.elastic is not None:
            require_range("--restarts", self.elastic.restarts, 0, 1 << 30)
            if self.elastic.most is not None:
                require_range("--max-workers", self.elastic.most, self.workers, 1 << 20)
            if self.elastic.resets is not None:
                require_range("--reset-limit", self.elastic.resets, 0, 1 << 30)
        for name, value in (("--timeout", self.timeout), ("--grace", self.grace)):
            if value is not None and not 0 <= value < 1e9:
                raise ConfigurationError(
                    f"{name} {value:g} is not valid: allowed are seconds, 0 or more"
                )

    def _check_ssh(self) -> None:
        if not self.ssh.command or shutil.which(self.ssh.command[0]) is None:
            raise ConfigurationError(
                f"--ssh-command {shlex.join(self.ssh.command)}: no such program; other hosts are "
                "reached through it: install ssh (Debian: openssh-client)"
            )
        if self.ssh.identity is not None and not self.ssh.identity.is_file():
            raise ConfigurationError(f"-i {self.ssh.identity}: no such file")


class CommandError(ConfigurationError):
    """The command cannot be started on this host or on another one."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status  # the exit status that a shell would give

    def __reduce__(self) -> tuple[Any, ...]:
        # By default, pickle calls the constructor with `args` alone, which lacks the status.
        return _unpickled, (type(self), *self.args), vars(self)


def _unpickled(kind: type[CommandError], message: str) -> CommandError:
    return kind.__new__(kind, message)  # Pickle sets the attributes afterwards.


def resolve_command(command: Sequence[str]) -> list[str]:
    """Finds the program; raises CommandError, with the exit status of a shell, if there is none."""
    program = command[0]
    found = shutil.which(program)
    if program in ("python", "python3") and sys.prefix != sys.base_prefix:
        # `herring` was called by path from an inactive virtual environment: use that one's Python.
        active = os.environ.get("VIRTUAL_ENV")
        if not active or not Path(active, "bin", program).exists():
            found = sys.executable
    if found:
        return [found, *command[1:]]
    if Path(program).is_file():
        hint = ": start it with its interpreter"
        if program.endswith(".py"):
            hint = f": put 'python' before it ('-- python {program}')"
        raise CommandError(f"{program} is not executable{hint}", EXIT_NOT_EXECUTABLE)
    raise CommandError(f"{program}: no such program", EXIT_NOT_FOUND)
