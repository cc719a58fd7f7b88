"""Reads what Slurm says about a job from its variables, and from `scontrol` if these do not tell.

Nothing here is secret. Everybody on a cluster can see job IDs, node names and addresses. They lead
to rank 0 and prove nothing; see `herring.rendezvous.secret_server` for the secret.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import zlib
from collections.abc import Mapping

from herring.errors import ConfigurationError
from herring.rendezvous.nodelist import first_host, tasks_on_node
from herring.rendezvous.settings import port_range, setting
from herring.rendezvous.variables import first, integer

# The ports are below Linux's default range of ephemeral ports (32768 and up), so no client has one.
_FIRST_DERIVED_PORT = 16384
_DERIVED_PORTS = 16000
# Numbers of steps that users do not start: the batch script, an interactive shell, `salloc`.
_FIRST_SPECIAL_STEP = 0xFFFFFFF0
_SCONTROL_SECONDS = 20


def in_job(env: Mapping[str, str]) -> bool:
    """Returns whether this process belongs to a Slurm job."""
    return first(env, "SLURM_JOB_ID", "SLURM_JOBID") in env


def in_step(env: Mapping[str, str]) -> bool:
    """Returns whether srun started this process as a task.

    A batch script also has ``SLURM_PROCID=0`` and ``SLURM_NTASKS``, and so has the shell that
    `salloc` opens on a node. Each of these is one process and not a task of a step.
    """
    if "SLURM_PROCID" not in env:
        return False
    step = env.get(first(env, "SLURM_STEP_ID", "SLURM_STEPID"), "")
    return bool(step) and not (step.isdigit() and int(step) >= _FIRST_SPECIAL_STEP)


def local_size(env: Mapping[str, str], size: int) -> int | None:
    """Returns the number of tasks of this step on this host, or None if no variable tells it."""
    if node_count(env) == "1":
        return size
    if "SLURM_HET_SIZE" in env:
        return None  # such a step lists its nodes in another order than it counts
    node = integer(env, "SLURM_NODEID")
    for variable in ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"):
        if node is not None and variable in env:
            return tasks_on_node(env[variable], node, variable)
    per_node = integer(env, "SLURM_NTASKS_PER_NODE", 1)
    # The number is an upper bound if the job asked for fewer tasks altogether.
    return None if per_node is None else min(per_node, size)


def node_count(env: Mapping[str, str]) -> str:
    """Returns the step's number of nodes as Slurm writes it; empty if Slurm does not tell it."""
    return env.get("SLURM_STEP_NUM_NODES", env.get("SLURM_NNODES", ""))


def job_id(env: Mapping[str, str]) -> int:
    """Returns the job's ID (of the first component if heterogeneous); or ConfigurationError."""
    # Components of a heterogeneous job have IDs of their own, and must agree on one.
    name = first(
        env,
        "SLURM_JOB_ID_HET_GROUP_0",
        "SLURM_JOB_ID_PACK_GROUP_0",
        "SLURM_HET_JOB_ID",
        "SLURM_JOB_ID",
        "SLURM_JOBID",
    )
    found = integer(env, name, 0, 1 << 40)
    if found is None:
        raise _missing("SLURM_JOB_ID")
    return found


def rendezvous(env: Mapping[str, str], job: str, servers: bool) -> tuple[str, int]:
    """Returns where rank 0 listens: the first node, and a port that all processes derive alike.

    Args:
        job: The value of ``HERRING_JOB``.
        servers: Whether the job has dedicated servers. Servers may run in a step of their own,
            which knows neither the number nor the nodes of the workers' step. Both steps then use
            the first node of the whole job, or of its first group.

    Raises:
        ConfigurationError: A variable is missing or is not a list of nodes.
    """
    groups = ("SLURM_JOB_NODELIST_HET_GROUP_0", "SLURM_JOB_NODELIST_PACK_GROUP_0")
    # A step may run on only some of the job's hosts; rank 0 is on the first host of the step.
    lists = (
        (*groups, "SLURM_JOB_NODELIST", "SLURM_NODELIST")
        if servers
        else ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
    )
    hosts = first(env, *lists)
    if hosts not in env:
        raise _missing("SLURM_JOB_NODELIST")
    number = job_id(env) * 31
    if not servers:
        number += int(re.sub(r"\D", "", env.get("SLURM_STEP_ID", "")) or "0")
    if job != setting("HERRING_JOB").default:
        number += zlib.crc32(job.encode())
    ports = port_range(env)
    if ports is None:
        return first_host(env[hosts], hosts), _FIRST_DERIVED_PORT + number % _DERIVED_PORTS
    # Processes that take any port begin with the first, so this port is in the upper half.
    return first_host(env[hosts], hosts), ports[-1 - number % ((len(ports) + 1) // 2)]


def node_address(name: str, env: Mapping[str, str]) -> str:
    """Returns the address under which Slurm itself reaches the node `name`.

    Args:
        name: The node's name, which need not resolve.

    Returns:
        The node's ``NodeAddr``, which is a literal or a name; empty if Slurm does not tell it.
    """
    # Nodes that Slurm creates on demand (in a cloud) are listed here as NAME:ADDRESS:HOST.
    aliases = env.get("SLURM_NODE_ALIASES", "")
    for entry in re.findall(r"(?:\[[^\]]*\]|[^,\[\]])+", aliases):
        match = re.fullmatch(r"([^:]+):(?:\[([^\]]+)\]|([^:]+)):.*", entry)
        if match and match.group(1) == name:
            return match.group(2) or match.group(3)
    return _field(_scontrol(env, "--oneliner", "show", "node", name), "NodeAddr")


def munge_socket(env: Mapping[str, str]) -> str:
    """Returns the socket of Slurm's munged if that is not munge's usual socket, else ""."""
    for line in _scontrol(env, "show", "config").splitlines():
        name, _, value = line.partition("=")
        if name.strip() == "AuthInfo":
            for option in value.split(","):
                key, _, path = option.strip().partition("=")
                if key == "socket":
                    return path
    return ""


def _scontrol(env: Mapping[str, str], *arguments: str) -> str:
    """Returns what `scontrol` prints; empty if it cannot be run or fails."""
    program = shutil.which("scontrol", path=env.get("PATH"))
    if program is None:
        return ""
    try:
        done = subprocess.run(
            [program, *arguments],
            env={**env, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SCONTROL_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _field(text: str, name: str) -> str:
    match = re.search(rf"(?:^|\s){name}=(\S+)", text)
    return match.group(1) if match else ""


def _missing(variable: str) -> ConfigurationError:
    return ConfigurationError(
        f"this process is a Slurm task, but {variable} is not set, from which Herring derives the "
        "rendezvous: start with srun, or set HERRING_RENDEZVOUS=HOST:PORT"
    )
