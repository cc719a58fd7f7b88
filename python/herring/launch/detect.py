"""Who am I in the job? Reads it from the variables that launchers set.

`detect` is a pure function of an environment: it opens nothing and asks nobody, so every launcher
can be tested with a dictionary. What it finds is carried out by `herring.launch.meet`.

The first launcher whose *rank* variable is present wins, in this order: ``HERRING_RANK``, torchrun
(``RANK``), Open MPI, PMIx or PMI (MPICH, Intel MPI), Slurm. ``HERRING_RENDEZVOUS``,
``HERRING_SERVERS``, ``HERRING_JOB`` and the secret's variables hold under all of them. Without any
rank this process is a job of one.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from herring.errors import ConfigurationError
from herring.launch.nodelist import first_host, tasks_on_node

__all__ = ["Rendezvous", "WorkerEnvironment", "detect", "parse_address", "parse_secret"]

MINIMUM_SECRET_BYTES = 16
MAXIMUM_SIZE = 1 << 20
_JOB = re.compile(r"[A-Za-z0-9._-]{1,64}")
_LOOPBACK = re.compile(r"localhost|127(\.\d{1,3}){3}|::1")
# Below Linux's default range of ephemeral ports (32768 and up), so that no client sits on it.
_FIRST_DERIVED_PORT = 16384
_DERIVED_PORTS = 16000


@dataclass(frozen=True)
class Rendezvous:
    """How the ranks find each other.

    Attributes:
        kind: ``none`` (a job of one), ``address`` (host and port are known to all),
            ``descriptor`` (as ``address``, and rank 0 inherited the listening socket),
            ``torch`` (rank 0 publishes through the torch store at host and port) or
            ``file`` (rank 0 publishes through a file on this, the only, host).
        host: Name or address; empty for ``none`` and ``file``.
        port: 1 to 65535; 0 for ``none`` and ``file``.
        descriptor: Number of the inherited listening socket (rank 0 of ``descriptor``), or None.
        key: What tells this job from others in a store or a directory; empty when only the
            launcher's process can tell (see `herring.launch.meet`).
    """

    kind: str
    host: str = ""
    port: int = 0
    descriptor: int | None = None
    key: str = ""

    @property
    def address(self) -> str:
        """``HOST:PORT``, or an empty string where there is no address yet."""
        if not self.port:
            return ""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class WorkerEnvironment:
    """What the environment says about this worker.

    Attributes:
        rank: 0 to size - 1.
        size: Number of workers of the job.
        local_rank: Rank among the workers of this host as the launcher counts them, or None.
        local_size: Number of workers on this host, or None.
        rendezvous: How the ranks find each other.
        source: ``herring``, ``torchrun``, ``openmpi``, ``pmix``, ``pmi``, ``slurm`` or ``single``.
        rank_variable: The variable the rank came from; empty for a job of one.
        job: Name of the job; part of every hello.
        servers: Number of dedicated servers that the job waits for.
        secret_file: File that holds the secret, or None.
        secret: The secret itself (from ``HERRING_SECRET``), or None. With neither, rank 0 makes
            one up and hands it on through the torch store or a file.
        single_host: Whether all workers are known to run on this host.
        restart: Generation of the job under an elastic launcher, else 0.
        store_is_served: Whether torchrun's agent serves the torch store (else rank 0 does).
    """

    rank: int
    size: int
    local_rank: int | None
    local_size: int | None
    rendezvous: Rendezvous
    source: str
    rank_variable: str = ""
    job: str = "herring"
    servers: int = 0
    secret_file: str | None = None
    secret: bytes | None = None
    single_host: bool = True
    restart: int = 0
    store_is_served: bool = False

    def __repr__(self) -> str:
        # The secret must not end up in a log or a traceback.
        shown = {name: getattr(self, name) for name in self.__dataclass_fields__}
        shown["secret"] = None if self.secret is None else "<hidden>"
        return f"WorkerEnvironment({', '.join(f'{k}={v!r}' for k, v in shown.items())})"


@dataclass(frozen=True)
class _Place:
    """Rank and size as one launcher reports them."""

    source: str
    rank_variable: str
    size_variable: str
    rank: int
    size: int
    local_rank: int | None
    local_size: int | None


def detect(environ: Mapping[str, str]) -> WorkerEnvironment:
    """Finds rank, size and rendezvous in `environ`.

    Args:
        environ: Environment variables, usually ``os.environ``. Variables that are set to an empty
            string count as missing.

    Returns:
        What the variables say; nothing has been opened, bound or read yet.

    Raises:
        ConfigurationError: A variable is missing, malformed or contradicts another one. The
            message names the variable, its value and what is allowed.
    """
    env = {name: value.strip() for name, value in environ.items() if value.strip()}
    job = env.get("HERRING_JOB", "herring")
    if not _JOB.fullmatch(job):
        raise _bad("HERRING_JOB", job, "1 to 64 letters, digits, dots, underscores or hyphens")
    servers = _integer(env, "HERRING_SERVERS", 0, 65535)
    place = _find_place(env)
    single_host = _is_single_host(env, place)
    rendezvous = _find_rendezvous(env, place, job, servers or 0, single_host)
    # Nobody outside this machine could reach a loopback address.
    single_host = single_host or bool(_LOOPBACK.fullmatch(rendezvous.host))
    secret_file = env.get("HERRING_SECRET_FILE")
    secret = None
    if secret_file is None and "HERRING_SECRET" in env:
        secret = parse_secret(env["HERRING_SECRET"])
    if (
        secret_file is None
        and secret is None
        and not single_host
        and rendezvous.kind in ("address", "descriptor")
    ):
        raise ConfigurationError(
            f"HERRING_SECRET_FILE is not set, and the {place.size} workers of this job may run on "
            "several hosts, which must share a secret: write one file (for example with "
            "'openssl rand -hex 32'), copy it to every host and set HERRING_SECRET_FILE to its path"
        )
    return WorkerEnvironment(
        rank=place.rank,
        size=place.size,
        local_rank=place.local_rank,
        local_size=place.local_size,
        rendezvous=rendezvous,
        source=place.source,
        rank_variable=place.rank_variable,
        job=job,
        servers=servers or 0,
        secret_file=secret_file,
        secret=secret,
        single_host=single_host,
        restart=_integer(env, "TORCHELASTIC_RESTART_COUNT", 0, MAXIMUM_SIZE) or 0
        if place.source == "torchrun"
        else 0,
        store_is_served=env.get("TORCHELASTIC_USE_AGENT_STORE", "").lower() in ("true", "1"),
    )


def parse_address(text: str, variable: str = "HERRING_RENDEZVOUS") -> tuple[str, int]:
    """Splits ``HOST:PORT`` (``[HOST]:PORT`` for IPv6).

    Args:
        text: The address.
        variable: Where it came from, for the message.

    Returns:
        Host without brackets, and port.

    Raises:
        ConfigurationError: `text` is no such address.
    """
    allowed = "HOST:PORT with a port from 1 to 65535, or [IPV6]:PORT"
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.%\w]+)\]|([^\s:\[\]/]+)):(\d{1,5})", text)
    if not match or not 1 <= int(match.group(3)) <= 65535:
        raise _bad(variable, text, allowed)
    return match.group(1) or match.group(2), int(match.group(3))


def parse_secret(text: str, variable: str = "HERRING_SECRET") -> bytes:
    """Decodes a secret written in hexadecimal.

    Raises:
        ConfigurationError: Not hexadecimal, or shorter than 16 bytes. The message does not repeat
            the value.
    """
    try:
        secret = bytes.fromhex(text)
    except ValueError:
        secret = b""
    if len(secret) < MINIMUM_SECRET_BYTES:
        raise ConfigurationError(
            f"{variable} (value not shown, {len(text)} characters) is no secret: allowed are at "
            f"least {2 * MINIMUM_SECRET_BYTES} hexadecimal digits"
        )
    return secret


def _bad(variable: str, value: object, allowed: str) -> ConfigurationError:
    return ConfigurationError(f"{variable}={value!s} is not valid: allowed is {allowed}")


def _integer(env: Mapping[str, str], variable: str, least: int, most: int) -> int | None:
    """The variable as an integer, or None if it is not set."""
    text = env.get(variable)
    if text is None:
        return None
    if not re.fullmatch(r"-?\d{1,18}", text, re.ASCII) or not least <= int(text) <= most:
        limit = f"an integer from {least} to {most}"
        if most == MAXIMUM_SIZE:
            limit = f"an integer of at least {least}"
        raise _bad(variable, text, limit)
    return int(text)


def _first(env: Mapping[str, str], *variables: str) -> str:
    """The first of `variables` that is set, else the first one (for messages)."""
    return next((name for name in variables if name in env), variables[0])


def _find_place(env: Mapping[str, str]) -> _Place:
    if "HERRING_RANK" not in env:
        for name in ("HERRING_SIZE", "HERRING_LOCAL_RANK", "HERRING_LOCAL_SIZE"):
            if name in env:
                raise ConfigurationError(
                    f"{name}={env[name]} is set, but HERRING_RANK is not: set HERRING_RANK and "
                    "HERRING_SIZE together, or neither"
                )
    else:
        return _place(
            env, "herring", "HERRING_RANK", "HERRING_SIZE", "HERRING_LOCAL_RANK",
            "HERRING_LOCAL_SIZE",
        )  # fmt: skip
    if "RANK" in env:
        return _place(env, "torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    if "OMPI_COMM_WORLD_RANK" in env:
        prefix = "OMPI_COMM_WORLD_"
        return _place(
            env, "openmpi", prefix + "RANK", prefix + "SIZE", prefix + "LOCAL_RANK",
            prefix + "LOCAL_SIZE",
        )  # fmt: skip
    if "PMIX_RANK" in env or "PMI_RANK" in env:
        source = "pmix" if "PMIX_RANK" in env else "pmi"
        # PMIx servers publish the size only through their library; Slurm knows it as well.
        size = _first(env, "PMI_SIZE", "PMIX_SIZE", "SLURM_NTASKS", "SLURM_NPROCS")
        local_rank = _first(env, "MPI_LOCALRANKID", "PMI_LOCAL_RANK", "SLURM_LOCALID")
        local_size = _first(env, "MPI_LOCALNRANKS", "PMI_LOCAL_SIZE")
        rank = "PMIX_RANK" if source == "pmix" else "PMI_RANK"
        return _place(env, source, rank, size, local_rank, local_size)
    if "SLURM_PROCID" in env:
        size = _first(env, "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS")
        return _place(env, "slurm", "SLURM_PROCID", size, "SLURM_LOCALID", "")
    for size, rank in (
        ("WORLD_SIZE", "RANK"),
        ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
        ("PMI_SIZE", "PMI_RANK"),
    ):
        if size in env:
            raise ConfigurationError(
                f"{size}={env[size]} is set, but {rank} is not: allowed are both (a launcher sets "
                "them) or neither (a job of one)"
            )
    return _Place("single", "", "", 0, 1, 0, 1)


def _place(
    env: Mapping[str, str],
    source: str,
    rank_variable: str,
    size_variable: str,
    local_rank_variable: str,
    local_size_variable: str,
) -> _Place:
    size = _integer(env, size_variable, 1, MAXIMUM_SIZE)
    if size is None:
        raise ConfigurationError(
            f"{rank_variable}={env[rank_variable]} is set, but {size_variable} is not: set "
            f"{size_variable} to the number of workers (at least {rank_variable} + 1)"
        )
    rank = _integer(env, rank_variable, 0, MAXIMUM_SIZE)
    assert rank is not None  # the caller looked
    if rank >= size:
        raise ConfigurationError(
            f"{rank_variable}={rank} contradicts {size_variable}={size}: allowed are ranks from 0 "
            f"to {size - 1}"
        )
    local_rank = _integer(env, local_rank_variable, 0, MAXIMUM_SIZE)
    local_size = _integer(env, local_size_variable, 1, MAXIMUM_SIZE)
    if local_size is None and ("SLURM_PROCID" in env or source == "slurm"):
        local_size = _slurm_local_size(env, size)
        local_size_variable = "SLURM_NTASKS_PER_NODE"
    if local_size is not None and local_size > size:
        raise ConfigurationError(
            f"{local_size_variable}={local_size} contradicts {size_variable}={size}: a host cannot "
            f"hold more workers than the job; allowed is 1 to {size}"
        )
    if local_rank is not None and local_size is not None and local_rank >= local_size:
        raise ConfigurationError(
            f"{local_rank_variable}={local_rank} contradicts {local_size_variable}={local_size}: "
            f"allowed are local ranks from 0 to {local_size - 1}"
        )
    if source == "herring" and (local_rank is None) != (local_size is None):
        given, missing = local_rank_variable, local_size_variable
        if local_rank is None:
            given, missing = missing, given
        raise ConfigurationError(
            f"{given}={env[given]} is set, but {missing} is not: set both or neither"
        )
    if local_rank is None or local_size is None:
        # One alone says nothing; who shares a host is decided by host identity anyway.
        local_rank = local_size = None
    if local_size is None and size == 1:
        local_rank, local_size = 0, 1
    return _Place(source, rank_variable, size_variable, rank, size, local_rank, local_size)


def _slurm_local_size(env: Mapping[str, str], size: int) -> int | None:
    """Workers on this host of a Slurm step, or None where the variables do not tell."""
    if env.get("SLURM_STEP_NUM_NODES", env.get("SLURM_NNODES", "")) == "1":
        return size
    node = _integer(env, "SLURM_NODEID", 0, MAXIMUM_SIZE)
    for variable in ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"):
        if node is not None and variable in env:
            return tasks_on_node(env[variable], node, variable)
    per_node = _integer(env, "SLURM_NTASKS_PER_NODE", 1, MAXIMUM_SIZE)
    # It is an upper bound when the job asked for fewer tasks altogether.
    return None if per_node is None else min(per_node, size)


def _is_single_host(env: Mapping[str, str], place: _Place) -> bool:
    if place.size == 1:
        return True
    if place.local_size is not None:
        return place.local_size == place.size
    nodes = env.get("SLURM_STEP_NUM_NODES", env.get("SLURM_NNODES", ""))
    return place.source in ("slurm", "pmix", "pmi") and nodes == "1"


def _find_rendezvous(
    env: Mapping[str, str], place: _Place, job: str, servers: int, single_host: bool
) -> Rendezvous:
    key = f"{job}-{place.source}"
    if "HERRING_RENDEZVOUS" in env:
        host, port = parse_address(env["HERRING_RENDEZVOUS"])
        descriptor = _integer(env, "HERRING_RENDEZVOUS_FD", 0, MAXIMUM_SIZE)
        if descriptor is not None and place.rank == 0:
            return Rendezvous("descriptor", host, port, descriptor, key)
        return Rendezvous("address", host, port, None, key)
    if servers:
        # Servers are started apart from the workers and need a place to go.
        raise ConfigurationError(
            f"HERRING_SERVERS={servers} is set, but HERRING_RENDEZVOUS is not: set "
            "HERRING_RENDEZVOUS=HOST:PORT for all workers and servers, with the host of rank 0"
        )
    if place.size == 1:
        return Rendezvous("none")
    if place.source == "herring":
        raise ConfigurationError(
            f"HERRING_SIZE={place.size} is set, but HERRING_RENDEZVOUS is not: set "
            "HERRING_RENDEZVOUS=HOST:PORT on every rank, with an address of rank 0's host and a "
            "free port there"
        )
    if place.source == "torchrun":
        for name in ("MASTER_ADDR", "MASTER_PORT"):
            if name not in env:
                raise ConfigurationError(
                    f"RANK={place.rank} and WORLD_SIZE={place.size} are set, but {name} is not: "
                    f"set {name} as torchrun does, or HERRING_RENDEZVOUS=HOST:PORT"
                )
        port = _integer(env, "MASTER_PORT", 1, 65535)
        assert port is not None
        run = env.get("TORCHELASTIC_RUN_ID", "")
        return Rendezvous("torch", env["MASTER_ADDR"].strip("[]"), port, None, f"{job}/{run}")
    if single_host:
        return Rendezvous("file", key=_file_key(env, place, key))
    if place.source == "slurm" or ("SLURM_JOB_ID" in env and "SLURM_PROCID" in env):
        return _slurm_rendezvous(env, place, key)
    where = "runs on several hosts"
    if place.local_size is None:
        where = "does not say whether it runs on one host"
    raise ConfigurationError(
        f"HERRING_RENDEZVOUS is not set, and this job of {place.size} workers (found by "
        f"{place.rank_variable}) {where}: set HERRING_RENDEZVOUS=HOST:PORT for all ranks, with an "
        "address of rank 0's host and a free port there"
    )


def _file_key(env: Mapping[str, str], place: _Place, prefix: str) -> str:
    """A name all ranks of the job derive alike, or an empty string if no variable gives one."""
    variables = {
        "openmpi": ("OMPI_MCA_ess_base_jobid", "PMIX_NAMESPACE"),
        "pmix": ("PMIX_NAMESPACE",),
        "pmi": ("PMI_JOBID",),
        "slurm": ("SLURM_JOB_ID", "SLURM_JOBID"),
    }[place.source]
    found = _first(env, *variables)
    if found not in env:
        if "SLURM_JOB_ID" not in env:
            return ""
        found = "SLURM_JOB_ID"
    text = env[found]
    if found.startswith("SLURM"):
        text += "." + env.get("SLURM_STEP_ID", "0")
    # Job ids hold characters that file names do not ("prterun-host-123@1").
    readable = re.sub(r"[^A-Za-z0-9._-]", "-", text)[:64]
    return f"{prefix}-{readable}-{zlib.crc32(text.encode()):08x}"


def _slurm_rendezvous(env: Mapping[str, str], place: _Place, key: str) -> Rendezvous:
    # A step may run on some of the job's hosts only, and rank 0 is on the first of those.
    hosts = _first(env, "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
    job_id = _integer(env, _first(env, "SLURM_JOB_ID", "SLURM_JOBID"), 0, 1 << 40)
    missing = None
    if hosts not in env:
        missing = "SLURM_JOB_NODELIST"
    elif job_id is None:
        missing = "SLURM_JOB_ID"
    if missing or job_id is None:
        raise ConfigurationError(
            f"{place.rank_variable}={place.rank} and {place.size_variable}={place.size} are set, "
            f"but {missing} is not, which gives the rendezvous: start with srun, or set "
            "HERRING_RENDEZVOUS=HOST:PORT"
        )
    step = re.sub(r"\D", "", env.get("SLURM_STEP_ID", "")) or "0"
    port = _FIRST_DERIVED_PORT + (job_id * 31 + int(step)) % _DERIVED_PORTS
    return Rendezvous("address", first_host(env[hosts], hosts), port, None, key)
