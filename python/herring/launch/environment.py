"""The environment of each process of a job, here and on other hosts."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from herring.base.split import even_parts
from herring.errors import ConfigurationError
from herring.launch.horovod_settings import TRAVELLING
from herring.launch.hosts import Host
from herring.launch.options import RunOptions, Task
from herring.rendezvous.joined import JOB_PREFIX
from herring.rendezvous.meet import SECRET_BYTES, read_secret_file
from herring.rendezvous.settings import setting, value_of, variables_of

_OF_A_HOST = {"HERRING_HOST_ID", "HERRING_INTERFACE"}
# Variables of torchrun, for scripts that were written for it.
_PLACE_FOR_TORCH = {
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
}
_STORE_OF_TORCH = {"MASTER_ADDR", "MASTER_PORT"}  # -x may choose another address
# Variables by which a program and its libraries are found, if all hosts are set up alike.
_BASICS = {
    *("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX"),
    *("CONDA_DEFAULT_ENV", "PYTHONUNBUFFERED", "OMP_NUM_THREADS"),
}


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
        chosen: Variables of -x, which may name another address.
    """
    host = rendezvous.rpartition(":")[0].strip("[]")
    place = {"MASTER_ADDR": host, "MASTER_PORT": str(port)}
    return {name: value for name, value in place.items() if name not in chosen}


def tasks(options: RunOptions, job: Mapping[str, str], store: Mapping[str, str]) -> Iterator[Task]:
    """Yields all processes of a job: servers, then workers (with `store`) by rank, in blocks."""
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
    options: RunOptions, job: Mapping[str, str], store: Mapping[str, str], place: Place, number: int
) -> Task:
    """Returns a worker before its start."""
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
