"""What `herring run` was asked for, and what each process of the job is started with."""

from __future__ import annotations

import os
import re
import secrets
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from herring.errors import ConfigurationError
from herring.launch.commands import module_command
from herring.launch.horovod_settings import TRAVELLING
from herring.launch.hosts import THIS_MACHINE, Host, Layout, require_range
from herring.rendezvous.joined import JOB_PREFIX
from herring.rendezvous.settings import value_of, variables_of
from herring.split import even_parts

__all__ = [
    "EXIT_NOT_EXECUTABLE",
    "EXIT_NOT_FOUND",
    "EXIT_NO_HOST",
    "CommandError",
    "RunOptions",
    "Task",
    "job_variables",
    "machine_defaults",
    "own_environment",
    "passed_environment",
    "resolve_command",
    "store_variables",
    "tasks",
]

EXIT_NOT_EXECUTABLE = 126  # as the shell
EXIT_NOT_FOUND = 127
EXIT_NO_HOST = 255  # as ssh
_OF_A_HOST = {"HERRING_HOST_ID", "HERRING_INTERFACE"}
# As torchrun has them, for scripts that were written for it.
_PLACE_FOR_TORCH = {
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
}
_STORE_OF_TORCH = {"MASTER_ADDR", "MASTER_PORT"}  # -x may choose another place
# What a program needs to be found and to find its libraries, where all hosts are set up alike.
_BASICS = {
    "PATH",
    "LD_LIBRARY_PATH",
    "PYTHONPATH",
    "PYTHONHOME",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "CONDA_DEFAULT_ENV",
    "PYTHONUNBUFFERED",
    "OMP_NUM_THREADS",
}


SERVER_COMMAND = (*module_command("herring.launch.cli"), "server", "--stay")


@dataclass(frozen=True)
class SshOptions:
    """How other hosts are reached.

    Attributes:
        command: The program, and options that come before all others.
        port: Where sshd listens, or None: as ssh is configured.
        identity: The file with the private key, or None.
        python: The Python there that has Herring.
    """

    command: Sequence[str] = ("ssh",)
    port: int | None = None
    identity: Path | None = None
    python: str = sys.executable


@dataclass(frozen=True)
class Task:
    """A process of the job that is to be started.

    Attributes:
        name: ``rank 3`` or ``server 0``.
        host: Where.
        rank: Of a worker; None for a server.
        number: Tells it from the others: the rank, and for servers what follows.
        environment: What it gets besides what its machine has.
    """

    name: str
    host: Host
    rank: int | None
    number: int
    environment: dict[str, str]


@dataclass(frozen=True)
class RunOptions:
    """What `herring run` was asked for.

    Attributes:
        command: Program and arguments of each worker.
        layout: Which host runs how many workers and servers.
        nodes: Number of nodes to pretend on one host, 1 to `workers`; ranks stand in blocks.
        timeout: Seconds after which the job is ended, or None.
        grace: Seconds between SIGTERM and SIGKILL.
        prefix: Whether output lines carry the rank.
        keep_going: Whether the others go on after a worker has failed.
        require_init: Whether a worker that ends without having called ``herring.init()`` failed.
        start_timeout: Seconds within which all must meet, or None: the setting.
        output: Folder that gets a copy of what each rank prints, or None.
        horovod: Whether ``import horovod`` is to find `herring.horovod`.
        interface: Interface or address that all processes on several hosts use, or None.
        assignments: Variables of -x: ``NAME`` or ``NAME=VALUE``.
        ssh: How other hosts are reached.
        server_command: What runs as a server; `herring server` by default.
    """

    command: Sequence[str]
    layout: Layout = field(default_factory=lambda: Layout(((THIS_MACHINE, 1),), ()))
    nodes: int = 1
    timeout: float | None = None
    grace: float = 10.0
    prefix: bool = True
    keep_going: bool = False
    require_init: bool = False
    start_timeout: float | None = None
    output: Path | None = None
    horovod: bool = False
    interface: str | None = None
    assignments: Sequence[str] = ()
    ssh: SshOptions = SshOptions()
    server_command: Sequence[str] = SERVER_COMMAND

    @property
    def workers(self) -> int:
        """Number of workers."""
        return self.layout.size

    @property
    def servers(self) -> int:
        """Number of dedicated servers."""
        return len(self.layout.servers)

    def check(self) -> None:
        """Refuses what cannot work.

        Raises:
            ConfigurationError: Names the option, its value and what is allowed.
        """
        if not self.command:
            raise ConfigurationError(
                "no command to run: put it behind '--', as in 'herring run -n 2 -- python train.py'"
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
        if self.layout.remote:
            self._check_ssh()
        for name, value in (("--timeout", self.timeout), ("--grace", self.grace)):
            if value is not None and not 0 <= value < 1e9:
                raise ConfigurationError(
                    f"{name} {value:g} is not valid: allowed are seconds, 0 or more"
                )

    def _check_ssh(self) -> None:
        if not self.ssh.command or shutil.which(self.ssh.command[0]) is None:
            raise ConfigurationError(
                f"--ssh-command {shlex.join(self.ssh.command)}: no such program, and other hosts "
                "are reached by it: install ssh (Debian: openssh-client)"
            )
        if self.ssh.identity is not None and not self.ssh.identity.is_file():
            raise ConfigurationError(f"-i {self.ssh.identity}: no such file")


class CommandError(ConfigurationError):
    """The command cannot be started, or not on some host.

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


def own_environment(environ: Mapping[str, str], several: bool = False) -> dict[str, str]:
    """`environ` without variables of a job around this one, which must not leak in.

    Args:
        environ: Usually ``os.environ``.
        several: Whether the job has several hosts: what names this one, and its interface, stays.
    """
    dropped = variables_of("launcher") | _PLACE_FOR_TORCH | _STORE_OF_TORCH
    if not several:
        dropped |= _OF_A_HOST
    return {
        name: value
        for name, value in environ.items()
        # A torchrun around this job serves no store for it.
        if name not in dropped and not name.startswith("TORCHELASTIC_")
    }


def job_variables(options: RunOptions, rendezvous: str) -> dict[str, str]:
    """What is the same for all processes of a new job that meets at `rendezvous` (HOST:PORT).

    The job's name and secret are made up anew with every call.
    """
    variables = {
        "HERRING_RENDEZVOUS": rendezvous,
        "HERRING_SERVERS": str(options.servers),
        "HERRING_SECRET": secrets.token_hex(32),
        "HERRING_JOB": f"{JOB_PREFIX}{os.getpid()}-{secrets.token_hex(4)}",
    }
    if options.start_timeout is not None:
        variables["HERRING_CONNECT_TIMEOUT"] = f"{options.start_timeout:g}"
    if options.layout.remote and options.interface is not None:
        variables["HERRING_INTERFACE"] = options.interface
    return variables


def machine_defaults(environment: dict[str, str], workers: int, horovod: bool) -> None:
    """Adds what follows from the machine that it is for, which is this one.

    Args:
        environment: Of all processes of the job on this machine; changed in place.
        workers: Number of workers on this machine.
        horovod: Whether ``import horovod`` is to find `herring.horovod`.
    """
    if horovod:
        folder = str(Path(__file__).resolve().parents[1] / "horovod" / "stand_in")
        paths = [folder, *filter(None, [environment.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
    environment.setdefault("PYTHONUNBUFFERED", "1")  # lines appear when they are printed
    if workers > 1:
        share = max(1, len(os.sched_getaffinity(0)) // workers)
        environment.setdefault("OMP_NUM_THREADS", str(share))


def passed_environment(
    environ: Mapping[str, str], assignments: Sequence[str]
) -> tuple[dict[str, str], dict[str, str]]:
    """What processes on other hosts get of this environment, and what -x sets everywhere.

    Args:
        environ: Usually ``os.environ``.
        assignments: Values of -x: ``NAME`` or ``NAME=VALUE``.

    Returns:
        Variables that travel to other hosts, those of -x among them; and those of -x alone.

    Raises:
        ConfigurationError: -x names no variable, one that is not set, or one of the job's own.
    """
    of_the_job = variables_of("launcher")
    chosen = {}
    for text in assignments:
        name, given, value = text.partition("=")
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise ConfigurationError(f"-x {text}: allowed is NAME or NAME=VALUE")
        if name in of_the_job | _PLACE_FOR_TORCH:
            raise ConfigurationError(f"-x {name}: herring run sets it itself; leave it out")
        if not given and name not in environ:
            raise ConfigurationError(f"-x {name}: it is not set here; give -x {name}=VALUE")
        chosen[name] = value if given else environ[name]
    never = of_the_job | {"HERRING_HOST_ID"}
    passed = {
        name: value
        for name, value in environ.items()
        if (name in _BASICS | TRAVELLING or name.startswith("HERRING_")) and name not in never
    }
    return {**passed, **chosen}, chosen


def as_horovod(options: RunOptions) -> bool:
    """Whether ``import horovod`` is to find `herring.horovod`."""
    return options.horovod or value_of(os.environ, "HERRING_AS_HOROVOD")


def store_variables(rendezvous: str, port: int, chosen: Mapping[str, str]) -> dict[str, str]:
    """Where rank 0 opens the store of torch.distributed, if the script asks for one.

    Args:
        rendezvous: HOST:PORT of the job; the store is on the same host.
        port: A port there that is kept free for it.
        chosen: Variables of -x, which may name another place.
    """
    host = rendezvous.rpartition(":")[0].strip("[]")
    place = {"MASTER_ADDR": host, "MASTER_PORT": str(port)}
    return {name: value for name, value in place.items() if name not in chosen}


def tasks(options: RunOptions, job: Mapping[str, str], store: Mapping[str, str]) -> Iterator[Task]:
    """All processes of a job: servers, then workers by rank, who stand in blocks on the nodes.

    Args:
        options: What was asked for.
        job: From `job_variables`.
        store: From `store_variables`; for workers alone.
    """
    for index, host in enumerate(options.layout.servers):
        # A host of its own, as it would be in earnest.
        environment = {**job, "HERRING_HOST_ID": f"{job['HERRING_JOB']}-server-{index}"}
        yield Task(f"server {index}", host, None, options.workers + index, environment)
    blocks = options.layout.workers
    if options.nodes > 1:
        host = blocks[0][0]
        blocks = tuple((host, count) for count in even_parts(options.workers, options.nodes))
    rank = 0
    for node, (host, count) in enumerate(blocks):
        for local_rank in range(count):
            environment = {
                **job,
                **store,
                "HERRING_RANK": str(rank),
                "HERRING_SIZE": str(options.workers),
                "HERRING_LOCAL_RANK": str(local_rank),
                "HERRING_LOCAL_SIZE": str(count),
                "RANK": str(rank),
                "WORLD_SIZE": str(options.workers),
                "LOCAL_RANK": str(local_rank),
                "LOCAL_WORLD_SIZE": str(count),
                "GROUP_RANK": str(node),
                "GROUP_WORLD_SIZE": str(len(blocks)),
            }
            if options.nodes > 1:
                environment["HERRING_HOST_ID"] = f"{job['HERRING_JOB']}-node-{node}"
            if as_horovod(options):  # scripts read them before they call init()
                for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"):
                    environment[f"HOROVOD_{name}"] = environment[f"HERRING_{name}"]
                environment["HOROVOD_CROSS_RANK"] = str(node)
                environment["HOROVOD_CROSS_SIZE"] = str(len(blocks))
            yield Task(f"rank {rank}", host, rank, rank, environment)
            rank += 1
