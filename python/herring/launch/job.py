"""The options of `herring run`, and the environment of each process of the job."""

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
from typing import Any, NamedTuple

from herring.base.split import even_parts
from herring.errors import ConfigurationError
from herring.launch.commands import module_command
from herring.launch.discovery import OPTION, Discovery
from herring.launch.horovod_settings import TRAVELLING
from herring.launch.hosts import THIS_MACHINE, Host, Layout, require_range
from herring.rendezvous.joined import JOB_PREFIX
from herring.rendezvous.meet import SECRET_BYTES, read_secret_file
from herring.rendezvous.settings import setting, value_of, variables_of

EXIT_NOT_EXECUTABLE = 126  # the status that a shell gives
EXIT_NOT_FOUND = 127
EXIT_NO_HOST = 255  # the status that ssh gives
_OF_A_HOST = {"HERRING_HOST_ID", "HERRING_INTERFACE"}
# Variables of torchrun, for scripts that were written for it.
_PLACE_FOR_TORCH = {
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
}
_STORE_OF_TORCH = {"MASTER_ADDR", "MASTER_PORT"}  # -x may choose another address
# Variables by which a program and its libraries are found, if all hosts are set up alike.
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
        port: The port of sshd, or None for the one in ssh's configuration.
        identity: The file with the private key, or None.
        python: The Python on the other hosts that has Herring.
    """

    command: Sequence[str] = ("ssh",)
    port: int | None = None
    identity: Path | None = None
    python: str = sys.executable


@dataclass(frozen=True)
class Task:
    """A process of the job before its start.

    Attributes:
        name: ``rank 3`` or ``server 0``.
        host: The host that runs the process.
        rank: The rank of a worker; None for a server.
        number: Identifies the process in the job: the rank, or for servers the numbers after ranks.
        environment: Variables that the process gets besides those of its machine.
    """

    name: str
    host: Host
    rank: int | None
    number: int
    environment: dict[str, str]


@dataclass(frozen=True)
class Elastic:
    """How a job goes on when workers die and when workers come.

    Attributes:
        least: The fewest workers with which it goes on.
        restarts: How often in a row a worker that dies soon after its start is started again.
        patience: Seconds that the job waits for enough workers.
        most: The most workers that take part, or None.
        resets: How often the job may begin anew for other workers, or None.
        discovery: The script that names the hosts, which may change; or None.
    """

    least: int = 1
    restarts: int = 5
    patience: float = 60.0
    most: int | None = None
    resets: int | None = None
    discovery: Discovery | None = None


@dataclass(frozen=True)
class RunOptions:
    """The options of `herring run`.

    Attributes:
        command: Program and arguments of each worker.
        layout: How many workers and servers each host runs.
        nodes: Number of nodes to simulate on one host, 1 to `workers`, of consecutive ranks each.
        timeout: Seconds after which the job is ended, or None.
        grace: Seconds between SIGTERM and SIGKILL.
        prefix: Whether output lines begin with the rank.
        prefix_time: Whether output lines begin with the time.
        keep_going: Whether the other workers continue after one has failed.
        require_init: Whether ending without having called ``herring.init()`` is a failure.
        start_timeout: Seconds within which all processes must meet, or None for the setting.
        stdin: The rank that reads the input of the launcher, which may be a terminal; None means
            rank 0, unless the input is a terminal.
        output: Folder that gets a copy of what each rank prints, or None.
        horovod: Whether ``import horovod`` finds `herring.horovod` in the workers.
        interface: Interface or address that processes on several hosts use, or None.
        assignments: Variables of -x: ``NAME`` or ``NAME=VALUE``.
        ssh: How other hosts are reached.
        elastic: How the job goes on without workers that die; None means that it ends.
        server_command: Program and arguments of a server; `herring server` by default.
    """

    command: Sequence[str]
    layout: Layout = field(default_factory=lambda: Layout(((THIS_MACHINE, 1),), ()))
    nodes: int = 1
    timeout: float | None = None
    grace: float = 10.0
    prefix: bool = True
    prefix_time: bool = False
    keep_going: bool = False
    require_init: bool = False
    start_timeout: float | None = None
    stdin: int | None = None
    output: Path | None = None
    horovod: bool = False
    interface: str | None = None
    assignments: Sequence[str] = ()
    ssh: SshOptions = SshOptions()
    elastic: Elastic | None = None
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
        """Checks the options before anything starts.

        Raises:
            ConfigurationError: Names the option, its value and what is allowed.
        """
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
    """The command cannot be started on this host or on another one.

    Attributes:
        status: The exit status that a shell would give.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status

    def __reduce__(self) -> tuple[Any, ...]:
        # By default, pickle calls the constructor with `args` alone, which lacks the status.
        return _unpickled, (type(self), *self.args), vars(self)


def _unpickled(kind: type[CommandError], message: str) -> CommandError:
    return kind.__new__(kind, message)  # Pickle sets the attributes afterwards.


def resolve_command(command: Sequence[str]) -> list[str]:
    """Finds the program before anything is started.

    Raises:
        CommandError: There is no such program; the error has the exit status of a shell.
    """
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


def own_environment(environ: Mapping[str, str], several: bool = False) -> dict[str, str]:
    """Returns `environ` without the variables of an enclosing job, which must not leak in.

    Args:
        environ: Usually ``os.environ``.
        several: Whether the job has several hosts. If so, this host's name and interface stay.
    """
    dropped = variables_of("launcher") | _PLACE_FOR_TORCH | _STORE_OF_TORCH
    if not several:
        dropped |= _OF_A_HOST
    return {
        name: value
        for name, value in environ.items()
        # An enclosing torchrun does not serve a store for this job.
        if name not in dropped and not name.startswith("TORCHELASTIC_")
    }


def ignored_variables(environ: Mapping[str, str]) -> list[str]:
    """Returns the variables by which the user may have meant to choose where and how the job meets.

    Variables of an enclosing `herring run` are not among them: the user did not set them.
    """
    if environ.get("HERRING_JOB", "").startswith(JOB_PREFIX):
        return []
    names = ("HERRING_RENDEZVOUS", "HERRING_SECRET", "HERRING_JOB")
    return [name for name in names if environ.get(name, "").strip()]


def job_secret(environ: Mapping[str, str]) -> str:
    """Returns the secret of a new job in hexadecimal: a new one, or that of HERRING_SECRET_FILE.

    Whoever has that file can ask the job for its status from elsewhere. The processes get what is
    in the file, so hosts need no copy of it.

    Raises:
        ConfigurationError: The file cannot be read, or its content is too short or too long.
    """
    path = environ.get("HERRING_SECRET_FILE", "").strip()
    secret = read_secret_file(path) if path else secrets.token_bytes(SECRET_BYTES)
    most = int(setting("HERRING_SECRET").maximum) // 2
    if len(secret) > most:
        raise ConfigurationError(
            f"HERRING_SECRET_FILE={path} holds {len(secret)} bytes: allowed are at most {most} "
            "(for example from 'openssl rand -hex 32')"
        )
    return secret.hex()


def job_variables(options: RunOptions, rendezvous: str, secret: str) -> dict[str, str]:
    """Returns the variables that all processes of a new job share.

    Every call makes a new name for the job.

    Args:
        options: The options of the job.
        rendezvous: Where it meets, as HOST:PORT.
        secret: What `job_secret` returned.
    """
    variables = {
        "HERRING_RENDEZVOUS": rendezvous,
        "HERRING_SERVERS": str(options.servers),
        "HERRING_SECRET": secret,
        "HERRING_JOB": f"{JOB_PREFIX}{os.getpid()}-{secrets.token_hex(4)}",
    }
    if options.elastic is not None:
        variables["HERRING_ELASTIC"] = rendezvous
    if options.start_timeout is not None:
        variables["HERRING_CONNECT_TIMEOUT"] = f"{options.start_timeout:g}"
    if options.several and options.interface is not None:
        variables["HERRING_INTERFACE"] = options.interface
    return variables


def machine_defaults(environment: dict[str, str], workers: int, horovod: bool) -> None:
    """Adds the variables that depend on the machine, which must be this one.

    Args:
        environment: The environment of all processes of the job here; changed in place.
        workers: Number of workers on this machine.
        horovod: Whether ``import horovod`` finds `herring.horovod`.
    """
    if horovod:
        folder = str(Path(__file__).resolve().parents[1] / "horovod" / "stand_in")
        paths = [folder, *filter(None, [environment.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
    environment.setdefault("PYTHONUNBUFFERED", "1")  # so that lines appear when they are printed
    if workers > 1:
        share = max(1, len(os.sched_getaffinity(0)) // workers)
        environment.setdefault("OMP_NUM_THREADS", str(share))


def passed_environment(
    environ: Mapping[str, str], assignments: Sequence[str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Selects the variables that other hosts get, and those that -x sets everywhere.

    Args:
        environ: Usually ``os.environ``.
        assignments: Values of -x: ``NAME`` or ``NAME=VALUE``.

    Returns:
        Variables that other hosts get, including those of -x; and those of -x alone.

    Raises:
        ConfigurationError: The text of -x is not a variable, or names a variable that is not set or
            that belongs to the job.
    """
    of_the_job = variables_of("launcher")
    chosen = {}
    for text in assignments:
        name, given, value = text.partition("=")
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise ConfigurationError(f"-x {text}: allowed is NAME or NAME=VALUE")
        if name in of_the_job | _PLACE_FOR_TORCH:
            raise ConfigurationError(f"-x {name}: herring run sets it itself; leave -x {name} out")
        if not given and name not in environ:
            raise ConfigurationError(f"-x {name}: the variable is not set; give -x {name}=VALUE")
        chosen[name] = value if given else environ[name]
    never = of_the_job | {"HERRING_HOST_ID"}
    passed = {
        name: value
        for name, value in environ.items()
        if (name in _BASICS | TRAVELLING or name.startswith("HERRING_")) and name not in never
    }
    return {**passed, **chosen}, chosen


def as_horovod(options: RunOptions) -> bool:
    """Whether ``import horovod`` finds `herring.horovod` in the workers."""
    return options.horovod or value_of(os.environ, "HERRING_AS_HOROVOD")


def store_variables(rendezvous: str, port: int, chosen: Mapping[str, str]) -> dict[str, str]:
    """Returns the address at which rank 0 opens a torch.distributed store if the script wants one.

    Args:
        rendezvous: HOST:PORT of the job; the store is on the same host.
        port: A port on that host that is kept free for the store.
        chosen: Variables of -x, which may name another address.
    """
    host = rendezvous.rpartition(":")[0].strip("[]")
    place = {"MASTER_ADDR": host, "MASTER_PORT": str(port)}
    return {name: value for name, value in place.items() if name not in chosen}


def tasks(options: RunOptions, job: Mapping[str, str], store: Mapping[str, str]) -> Iterator[Task]:
    """Yields all processes of a job: servers, then workers by rank, in blocks on the nodes.

    Args:
        options: The options of `herring run`.
        job: The result of `job_variables`.
        store: The result of `store_variables`; only workers get it.
    """
    for index, host in enumerate(options.layout.servers):
        # Each server counts as a host of its own, as it would be in a real cluster.
        environment = {
            **job,
            "HERRING_HOST_ID": f"{job['HERRING_JOB']}-server-{index}",
            "HERRING_SERVER_NUMBER": str(index),
        }
        yield Task(f"server {index}", host, None, options.workers + index, environment)
    blocks = options.layout.workers
    if options.nodes > 1:
        host = blocks[0][0]
        blocks = tuple((host, count) for count in even_parts(options.workers, options.nodes))
    rank = 0
    for node, (host, count) in enumerate(blocks):
        for local_rank in range(count):
            place = Place(host, rank, options.workers, local_rank, count, node, len(blocks))
            yield worker_task(options, job, store, place, rank)
            rank += 1


class Place(NamedTuple):
    """The place of a worker in a job."""

    host: Host
    rank: int
    size: int
    local_rank: int
    local_size: int
    node: int
    nodes: int


def worker_task(
    options: RunOptions,
    job: Mapping[str, str],
    store: Mapping[str, str],
    place: Place,
    number: int,
) -> Task:
    """Returns a worker before its start.

    Args:
        options: The options of `herring run`.
        job: The result of `job_variables`.
        store: The result of `store_variables`.
        place: Its place in the job.
        number: Its number among all processes of the job.
    """
    environment = {
        **job,
        **store,
        "HERRING_RANK": str(place.rank),
        "HERRING_SIZE": str(place.size),
        "HERRING_LOCAL_RANK": str(place.local_rank),
        "HERRING_LOCAL_SIZE": str(place.local_size),
        "RANK": str(place.rank),
        "WORLD_SIZE": str(place.size),
        "LOCAL_RANK": str(place.local_rank),
        "LOCAL_WORLD_SIZE": str(place.local_size),
        "GROUP_RANK": str(place.node),
        "GROUP_WORLD_SIZE": str(place.nodes),
    }
    if options.nodes > 1:
        environment["HERRING_HOST_ID"] = f"{job['HERRING_JOB']}-node-{place.node}"
    if as_horovod(options):  # scripts read these before they call init()
        for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"):
            environment[f"HOROVOD_{name}"] = environment[f"HERRING_{name}"]
        environment["HOROVOD_CROSS_RANK"] = str(place.node)
        environment["HOROVOD_CROSS_SIZE"] = str(place.nodes)
    return Task(f"rank {place.rank}", place.host, place.rank, number, environment)
