"""Finds out who this process is in the job, from the variables that launchers set.

`detect` is a pure function of an environment. It opens nothing and asks nobody, so every launcher
can be tested with a dictionary. `herring.rendezvous.meet` acts on the result.

The first launcher whose *rank* variable is present wins, in this order: ``HERRING_RANK``, torchrun
(``RANK``), Open MPI, PMIx or PMI (MPICH, Intel MPI), Slurm. ``HERRING_RENDEZVOUS``,
``HERRING_SERVERS``, ``HERRING_JOB`` and the secret's variables work with all of them. Without any
rank this process is a job of one worker.

One launch may start workers and servers (``mpirun -n 4 python train.py : -n 2 herring server``).
The servers then have the last ranks, and ``HERRING_SIZE`` says how many of the ranks are workers.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from herring.errors import ConfigurationError
from herring.rendezvous import settings, slurm
from herring.rendezvous.network import with_port
from herring.rendezvous.variables import first, integer

_STRONG_SECRET_BYTES = 32
_OURS = ("HERRING_SIZE", "HERRING_LOCAL_RANK", "HERRING_LOCAL_SIZE")
# Variables of launchers that can start servers and workers in one launch.
_LINES = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_STEP_ID", "SLURM_STEPID")
_LOOPBACK = re.compile(r"localhost|127(\.\d{1,3}){3}|::1")


@dataclass(frozen=True)
class Rendezvous:
    """How the ranks find each other."""

    # ``none``: a job of one worker. ``address``: all ranks know host and port. ``descriptor``: like
    # ``address``, and rank 0 inherited the listening socket. ``torch``: rank 0 publishes through
    # the torch store at host and port. ``munge``: at host and port rank 0 answers processes of its
    # user on this cluster. ``file``: rank 0 publishes through a file on this host, which is the
    # only one.
    kind: str
    host: str = ""  # a name or an address; empty for ``none`` and ``file``
    port: int = 0  # 1 to 65535; 0 for ``none`` and ``file``
    # The number of the inherited listening socket (rank 0 of ``descriptor``), or None.
    descriptor: int | None = None
    # Identifies this job in a store or a folder. Empty if only the launcher's process can identify
    # it (see `herring.rendezvous.meet`).
    key: str = ""
    variable: str = "HERRING_RENDEZVOUS"  # where host and port came from, for messages

    @property
    def address(self) -> str:
        """``HOST:PORT``, or an empty string if there is no address yet."""
        return with_port(self.host, self.port) if self.port else ""


@dataclass(frozen=True)
class WorkerEnvironment:
    """What the environment says about this worker."""

    rank: int  # 0 to size - 1
    size: int  # the number of workers of the job
    # The rank among the workers of this host as the launcher counts them, or None.
    local_rank: int | None
    local_size: int | None  # the number of workers on this host, or None
    rendezvous: Rendezvous  # how the ranks find each other
    # ``herring``, ``torchrun``, ``openmpi``, ``pmix``, ``pmi``, ``slurm`` or ``single``.
    source: str
    rank_variable: str = ""  # the variable that the rank came from; empty for a job of one worker
    # The number of ranks of the launch: `size`, or more if it also starts servers.
    launched: int = 1
    job: str = "herring"  # the name of the job, which is part of every hello
    servers: int = 0  # the number of dedicated servers that the job waits for
    secret_file: str | None = None  # the file that contains the secret, or None
    # The secret itself (from ``HERRING_SECRET``), or None. Without either, rank 0 makes up a secret
    # and passes it on through the torch store or a file.
    secret: bytes | None = field(default=None, repr=False)  # kept out of logs and tracebacks
    single_host: bool = True  # whether all workers are known to run on this host
    restart: int = 0  # the generation of the job under an elastic launcher, else 0
    # Whether torchrun's agent serves the torch store (else rank 0 does).
    store_is_served: bool = False


@dataclass(frozen=True)
class ServerEnvironment:
    """What the environment says about a dedicated server."""

    rendezvous: Rendezvous  # how the server finds the job: ``address``, ``munge`` or ``file``
    # The server's rank in the launch, which may also start workers, or None.
    rank: int | None = None
    rank_variable: str = ""  # the variable that `rank` came from; empty without a rank
    source: str = "single"  # the launcher, with the names that `WorkerEnvironment` has
    job: str = "herring"  # the name of the job
    secret_file: str | None = None  # the file that contains the secret, or None
    secret: bytes | None = field(default=None, repr=False)  # the secret itself, or None


@dataclass(frozen=True)
class _Place:
    """Rank and size as a launcher reports them; `size` counts workers, `launched` all ranks."""

    source: str
    rank_variable: str
    size_variable: str
    rank: int
    size: int
    local_rank: int | None
    local_size: int | None
    launched: int
    single_host: bool


def detect(environ: Mapping[str, str]) -> WorkerEnvironment:
    """Finds rank, size and rendezvous in `environ`.

    Args:
        environ: Environment variables, usually ``os.environ``. A variable that is set to an empty
            string counts as missing.

    Returns:
        What the variables say; nothing has been opened, bound or read yet.

    Raises:
        ConfigurationError: A variable is missing, is malformed or contradicts another variable. The
            message names the variable, its value and what is allowed.
    """
    env = _stripped(environ)
    job = _job_name(env)
    place = _without_servers(env, _find_place(env))
    servers = integer(env, "HERRING_SERVERS")
    in_line = place.launched - place.size
    if in_line and servers not in (None, in_line):
        raise ConfigurationError(
            f"HERRING_SERVERS={servers} contradicts HERRING_SIZE={place.size}: of the "
            f"{place.launched} ranks of this launch ({place.size_variable}) {in_line} are servers; "
            "set only HERRING_SIZE"
        )
    servers = in_line or servers or 0
    secret_file, secret = _find_secret(env)
    secretless = secret_file is None and secret is None
    rendezvous = _find_rendezvous(env, place, job, servers, secretless)
    # A process on another machine could not reach a loopback address.
    single_host = place.single_host or bool(_LOOPBACK.fullmatch(rendezvous.host))
    if secretless and not single_host and rendezvous.kind in ("address", "descriptor"):
        raise ConfigurationError(
            f"HERRING_SECRET_FILE is not set, and the {place.size} workers of this job may run on "
            "several hosts, which must share a secret: write one file with "
            "'(umask 077; openssl rand -hex 32 > $HOME/secret)', copy it to every host and set "
            "HERRING_SECRET_FILE to its absolute path"
        )
    return WorkerEnvironment(
        rank=place.rank,
        size=place.size,
        local_rank=place.local_rank,
        local_size=place.local_size,
        rendezvous=rendezvous,
        source=place.source,
        rank_variable=place.rank_variable,
        launched=place.launched,
        job=job,
        servers=servers,
        secret_file=secret_file,
        secret=secret,
        single_host=single_host,
        restart=integer(env, "TORCHELASTIC_RESTART_COUNT") or 0
        if place.source == "torchrun"
        else 0,
        store_is_served=env.get("TORCHELASTIC_USE_AGENT_STORE", "").lower() in ("true", "1"),
    )


def detect_server(environ: Mapping[str, str], address: str | None = None) -> ServerEnvironment:
    """Finds out where a dedicated server's job meets.

    Args:
        environ: Environment variables, usually ``os.environ``.
        address: ``HOST:PORT`` if an option gave it, else None.

    Returns:
        What the variables say; nothing has been opened, bound or read yet.

    Raises:
        ConfigurationError: A variable is missing, is malformed or contradicts another variable. The
            message names the variable, its value and what is allowed.
    """
    env = _stripped(environ)
    job = _job_name(env)
    secret_file, secret = _find_secret(env)
    secretless = secret_file is None and secret is None
    variable = "--rendezvous" if address else "HERRING_RENDEZVOUS"
    address = address or env.get(variable)
    if address:
        host, port = parse_address(address, variable)
        place = Rendezvous("address", host, port, None, "", variable)
        if secretless and slurm.in_job(env) and not _LOOPBACK.fullmatch(host):
            place = Rendezvous("munge", host, port, None, _munge_key(env, job), variable)
        return ServerEnvironment(place, job=job, secret_file=secret_file, secret=secret)
    line = _find_line(env)
    where = ""
    if slurm.in_job(env):
        place = _slurm_rendezvous(env, job, True, secretless)
    elif line is not None and line.single_host:
        place = Rendezvous("file", key=_file_key(env, line, f"{job}-{line.source}"))
    else:
        if line is not None:
            where = f", and the ranks of its launch ({line.rank_variable}) are on several hosts"
        raise ConfigurationError(
            f"the server does not know where the job meets{where}: give --rendezvous HOST:PORT or "
            "set HERRING_RENDEZVOUS, as for the workers"
        )
    if line is None:
        return ServerEnvironment(place, job=job, secret_file=secret_file, secret=secret)
    return ServerEnvironment(
        place, line.rank, line.rank_variable, line.source, job, secret_file, secret
    )


def parse_address(text: str, variable: str = "HERRING_RENDEZVOUS") -> tuple[str, int]:
    """Returns host and port of ``HOST:PORT`` (``[HOST]:PORT`` for IPv6), or ConfigurationError."""
    text = settings.setting("HERRING_RENDEZVOUS").parse(text, variable)
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


def parse_secret(text: str, variable: str = "HERRING_SECRET") -> bytes:
    """Decodes a secret in hexadecimal, or raises ConfigurationError, which does not repeat it."""
    text = settings.setting("HERRING_SECRET").parse(text, variable)
    secret = bytes.fromhex(text)
    warn_of_weak_secret(secret, f"{variable} is")
    return secret


def warn_of_weak_secret(secret: bytes, what: str) -> None:
    """Warns of a secret that an eavesdropper may guess; `what` is its source and a verb."""
    if len(secret) < _STRONG_SECRET_BYTES:
        from herring import _core

        _core.log_warning(
            f"{what} {len(secret)} bytes, which others may guess: use {_STRONG_SECRET_BYTES} "
            "random bytes (for example from 'openssl rand -hex 32')"
        )


def _stripped(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value.strip() for name, value in environ.items() if value.strip()}


def _job_name(env: Mapping[str, str]) -> str:
    for variable in ("HERRING_SECRET_FILE", "HERRING_HOST_ID", "HERRING_PORTS"):
        settings.given(env, variable)  # an error must come before anything is opened
    return settings.value_of(env, "HERRING_JOB")


def _find_secret(env: Mapping[str, str]) -> tuple[str | None, bytes | None]:
    """Returns the file with the secret, else the secret itself, else neither."""
    path = env.get("HERRING_SECRET_FILE")
    if path is None and "HERRING_SECRET" in env:
        return None, parse_secret(env["HERRING_SECRET"])
    return path, None


def _find_place(env: Mapping[str, str]) -> _Place:
    if "HERRING_RANK" not in env:
        line = "RANK" not in env and any(name in env for name in _LINES)
        for name in _OURS:
            if name in env and not (line and name == "HERRING_SIZE"):
                raise ConfigurationError(
                    f"{name}={env[name]} is set, but HERRING_RANK is not: set HERRING_RANK and "
                    "HERRING_SIZE together, or neither"
                )
    else:
        _refuse_two_launchers(env)
        return _place(env, "herring", *_after("HERRING_"))
    if "RANK" in env:
        return _place(env, "torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    line = _find_line(env)
    if line is not None:
        return line
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
    return _Place("single", "", "", 0, 1, 0, 1, 1, True)


def _refuse_two_launchers(env: Mapping[str, str]) -> None:
    """Refuses variables of Herring that torchrun's contradict: each rank would be alone, silently.

    ``herring run`` sets torchrun's variables, too, to the same values.
    """
    if "TORCHELASTIC_RUN_ID" not in env:
        return  # some clusters set RANK and WORLD_SIZE to numbers of hosts
    for ours, other in (("HERRING_RANK", "RANK"), ("HERRING_SIZE", "WORLD_SIZE")):
        if env.get(other, env.get(ours)) != env.get(ours):
            raise ConfigurationError(
                f"{other}={env[other]} of torchrun contradicts {ours}={env.get(ours)}: start the "
                f"workers with torchrun or with herring run alone, and unset {ours} if it is left "
                "over from before"
            )


def _find_line(env: Mapping[str, str]) -> _Place | None:
    """Returns the place in a launch that may start any programs, workers or servers; or None."""
    if "OMPI_COMM_WORLD_RANK" in env:
        return _place(env, "openmpi", *_after("OMPI_COMM_WORLD_"))
    if "PMIX_RANK" in env or "PMI_RANK" in env:
        source = "pmix" if "PMIX_RANK" in env else "pmi"
        # PMIx tells the size only through its library, but Slurm's variables have it as well.
        size = first(env, "PMI_SIZE", "PMIX_SIZE", "SLURM_NTASKS", "SLURM_NPROCS")
        local_rank = first(env, "MPI_LOCALRANKID", "PMI_LOCAL_RANK", "SLURM_LOCALID")
        local_size = first(env, "MPI_LOCALNRANKS", "PMI_LOCAL_SIZE")
        rank = "PMIX_RANK" if source == "pmix" else "PMI_RANK"
        return _place(env, source, rank, size, local_rank, local_size)
    if slurm.in_step(env):
        size = first(env, "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS")
        return _place(env, "slurm", "SLURM_PROCID", size, "SLURM_LOCALID", "")
    return None


def _after(prefix: str) -> tuple[str, str, str, str]:
    return f"{prefix}RANK", f"{prefix}SIZE", f"{prefix}LOCAL_RANK", f"{prefix}LOCAL_SIZE"


def _place(
    env: Mapping[str, str],
    source: str,
    rank_variable: str,
    size_variable: str,
    local_rank_variable: str,
    local_size_variable: str,
) -> _Place:
    size = integer(env, size_variable, 1)
    if size is None:
        raise ConfigurationError(
            f"{rank_variable}={env[rank_variable]} is set, but {size_variable} is not: set "
            f"{size_variable} to the number of workers (at least {rank_variable} + 1)"
        )
    rank = integer(env, rank_variable)
    assert rank is not None  # the caller has checked that it is set
    if rank >= size:
        raise ConfigurationError(
            f"{rank_variable}={rank} contradicts {size_variable}={size}: allowed are ranks from 0 "
            f"to {size - 1}"
        )
    local_rank = integer(env, local_rank_variable)
    local_size = integer(env, local_size_variable, 1)
    if local_size is None and slurm.in_step(env):
        local_size = slurm.local_size(env, size)
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
        # One of the two alone says nothing. Host identities later decide who shares a host.
        local_rank = local_size = None
    if local_size is None and size == 1:
        local_rank, local_size = 0, 1
    single_host = size == 1 or local_size == size
    if local_size is None and source in ("slurm", "pmix", "pmi"):
        single_host = single_host or slurm.node_count(env) == "1"
    return _Place(
        source, rank_variable, size_variable, rank, size, local_rank, local_size, size, single_host
    )


def _without_servers(env: Mapping[str, str], place: _Place) -> _Place:
    """Returns `place` without the servers that the same launch starts after the workers."""
    if place.source in ("herring", "torchrun", "single") or "HERRING_SIZE" not in env:
        return place
    size = integer(env, "HERRING_SIZE")
    assert size is not None
    if size > place.launched:
        raise ConfigurationError(
            f"HERRING_SIZE={size} contradicts {place.size_variable}={place.launched}: allowed is "
            f"the number of workers of this launch, 1 to {place.launched}"
        )
    if place.rank >= size:
        raise ConfigurationError(
            f"{place.rank_variable}={place.rank} contradicts HERRING_SIZE={size}: of the "
            f"{place.launched} ranks of this launch the first {size} are workers and the others "
            "run 'herring server'; put the servers last, or set HERRING_SIZE to the number of "
            "workers"
        )
    if size == place.launched:
        return place
    # No launcher tells how many ranks of a host are workers; the ranks learn it when they meet.
    return replace(place, size=size, local_rank=None, local_size=None)


def _find_rendezvous(
    env: Mapping[str, str], place: _Place, job: str, servers: int, secretless: bool
) -> Rendezvous:
    key = f"{job}-{place.source}"
    # Servers of the same launch find the job by this launcher's means, too.
    in_line = place.launched > place.size
    if "HERRING_RENDEZVOUS" in env:
        host, port = parse_address(env["HERRING_RENDEZVOUS"])
        descriptor = integer(env, "HERRING_RENDEZVOUS_FD")
        if descriptor is not None and descriptor >= 0 and place.rank == 0:
            return Rendezvous("descriptor", host, port, descriptor, key)
        elsewhere = servers or not place.single_host
        if secretless and elsewhere and slurm.in_job(env) and not _LOOPBACK.fullmatch(host):
            return Rendezvous("munge", host, port, None, _munge_key(env, job))
        return Rendezvous("address", host, port, None, key)
    # Ranks that mpirun starts inside a Slurm allocation do not all belong to a step.
    mpirun = place.source == "openmpi" and slurm.in_job(env)
    by_slurm = mpirun or (place.source in ("slurm", "pmix", "pmi") and slurm.in_step(env))
    if servers and by_slurm:
        return _slurm_rendezvous(env, job, True, secretless)
    if servers and not (in_line and place.single_host):
        # Servers are started separately from the workers and need an address.
        raise ConfigurationError(
            f"HERRING_SERVERS={servers} is set, but HERRING_RENDEZVOUS is not: set "
            "HERRING_RENDEZVOUS=HOST:PORT for all workers and servers, with the host of rank 0"
            if not in_line
            else f"HERRING_RENDEZVOUS is not set, and the {place.size} workers and {servers} "
            "servers of this launch run on several hosts: set HERRING_RENDEZVOUS=HOST:PORT for all "
            "of them, with an address of rank 0's host and a free port there"
        )
    if place.size == 1 and not servers:
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
        port = integer(env, "MASTER_PORT", 1, 65535)
        assert port is not None
        run = env.get("TORCHELASTIC_RUN_ID", "")
        return Rendezvous("torch", env["MASTER_ADDR"].strip("[]"), port, None, f"{job}/{run}")
    if place.single_host:
        return Rendezvous("file", key=_file_key(env, place, key))
    if by_slurm:
        return _slurm_rendezvous(env, job, mpirun, secretless)
    where = "runs on several hosts"
    if place.local_size is None:
        where = "does not say whether it runs on one host"
    raise ConfigurationError(
        f"HERRING_RENDEZVOUS is not set, and this job of {place.size} workers (found by "
        f"{place.rank_variable}) {where}: set HERRING_RENDEZVOUS=HOST:PORT for all ranks, with an "
        "address of rank 0's host and a free port there"
    )


def _file_key(env: Mapping[str, str], place: _Place, prefix: str) -> str:
    """Returns a name that all ranks of the job derive alike; empty if no variable gives one."""
    variables = {
        "openmpi": ("OMPI_MCA_ess_base_jobid", "PMIX_NAMESPACE"),
        "pmix": ("PMIX_NAMESPACE",),
        "pmi": ("PMI_JOBID",),
        "slurm": ("SLURM_JOB_ID", "SLURM_JOBID"),
    }[place.source]
    found = first(env, *variables)
    if found not in env:
        if "SLURM_JOB_ID" not in env:
            return ""
        found = "SLURM_JOB_ID"
    text = env[found]
    if found.startswith("SLURM"):
        text += "." + env.get("SLURM_STEP_ID", "0")
    # Job IDs contain characters that file names cannot have ("prterun-host-123@1").
    readable = re.sub(r"[^A-Za-z0-9._-]", "-", text)[:64]
    return f"{prefix}-{readable}-{zlib.crc32(text.encode()):08x}"


def _slurm_rendezvous(
    env: Mapping[str, str], job: str, servers: bool, secretless: bool
) -> Rendezvous:
    host, port = slurm.rendezvous(env, job, servers)
    kind, key = ("munge", _munge_key(env, job)) if secretless else ("address", "")
    return Rendezvous(kind, host, port, None, key, "Slurm")


def _munge_key(env: Mapping[str, str], job: str) -> str:
    """Returns the name under which processes of a Slurm job ask rank 0 for the secret."""
    return f"{job}/{slurm.job_id(env)}"
