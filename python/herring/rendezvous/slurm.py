"""What Slurm says about a job: from its variables, and where they do not tell, from `scontrol`.

Nothing here is secret. Job ids, node names and addresses can be seen by everybody on a cluster, so
they lead to rank 0 and prove nothing; see `herring.rendezvous.gate` for the secret.
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

__all__ = [
    "in_job",
    "in_step",
    "job_id",
    "local_size",
    "munge_socket",
    "node_address",
    "node_count",
    "rendezvous",
]

# Below Linux's default range of ephemeral ports (32768 and up), so that no client sits on it.
_FIRST_DERIVED_PORT = 16384
_DERIVED_PORTS = 16000
# Steps that users do not start: of the batch script, of an interactive shell, of `salloc`.
_FIRST_SPECIAL_STEP = 0xFFFFFFF0
_SCONTROL_SECONDS = 20


def in_job(env: Mapping[str, str]) -> bool:
    """Whether this process belongs to a job of Slurm's."""
    return first(env, "SLURM_JOB_ID", "SLURM_JOBID") in env


def in_step(env: Mapping[str, str]) -> bool:
    """Whether srun started this process as a task.

    A batch script has ``SLURM_PROCID=0`` and ``SLURM_NTASKS`` too, and so has the shell that
    `salloc` opens on a node; but they are one process, and no tasks of anybody's.
    """
    if "SLURM_PROCID" not in env:
        return False
    step = env.get(first(env, "SLURM_STEP_ID", "SLURM_STEPID"), "")
    return bool(step) and not (step.isdigit() and int(step) >= _FIRST_SPECIAL_STEP)


def local_size(env: Mapping[str, str], size: int) -> int | None:
    """Tasks of this step on this host, or None where the variables do not tell.

    Args:
        env: The environment.
        size: Tasks of the step.
    """
    if node_count(env) == "1":
        return size
    if "SLURM_HET_SIZE" in env:
        return None  # a step over several groups lists its nodes in another order than it counts
    node = integer(env, "SLURM_NODEID")
    for variable in ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"):
        if node is not None and variable in env:
            return tasks_on_node(env[variable], node, variable)
    per_node = integer(env, "SLURM_NTASKS_PER_NODE", 1)
    # It is an upper bound when the job asked for fewer tasks altogether.
    return None if per_node is None else min(per_node, size)


def node_count(env: Mapping[str, str]) -> str:
    """How many nodes the step has, as Slurm writes it; empty if it does not."""
    return env.get("SLURM_STEP_NUM_NODES", env.get("SLURM_NNODES", ""))


def job_id(env: Mapping[str, str]) -> int:
    """The job's number; of a heterogeneous job, that of its first component.

    Raises:
        ConfigurationError: There is none.
    """
    # Components of a heterogeneous job have numbers of their own, and must agree on one.
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
    """Where rank 0 listens: the first node and a port that all derive alike.

    Args:
        env: The environment.
        job: ``HERRING_JOB``.
        servers: Whether the job has dedicated servers. These may run in a step of their own, which
            knows neither number nor nodes of the workers' step; so both take what belongs to the
            whole job: its first node, or that of its first group.

    Returns:
        Name of the node, and port.

    Raises:
        ConfigurationError: A variable is missing, or a list of nodes is none.
    """
    groups = ("SLURM_JOB_NODELIST_HET_GROUP_0", "SLURM_JOB_NODELIST_PACK_GROUP_0")
    # A step may run on some of the job's hosts only, and rank 0 is on the first of those.
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
    # Whoever takes any port begins with the first: so this one is of the upper half.
    return first_host(env[hosts], hosts), ports[-1 - number % ((len(ports) + 1) // 2)]


def node_address(name: str, env: Mapping[str, str]) -> str:
    """The address under which Slurm itself reaches the node `name`.

    Args:
        name: A node's name, which need not resolve.
        env: The environment of a process in a job.

    Returns:
        ``NodeAddr`` of the node, which is a literal or a name; empty if Slurm does not say.
    """
    # Nodes that Slurm makes when they are needed (in a cloud) are listed here: NAME:ADDRESS:HOST.
    aliases = env.get("SLURM_NODE_ALIASES", "")
    for entry in re.findall(r"(?:\[[^\]]*\]|[^,\[\]])+", aliases):
        match = re.fullmatch(r"([^:]+):(?:\[([^\]]+)\]|([^:]+)):.*", entry)
        if match and match.group(1) == name:
            return match.group(2) or match.group(3)
    return _field(_scontrol(env, "--oneliner", "show", "node", name), "NodeAddr")


def munge_socket(env: Mapping[str, str]) -> str:
    """The socket of the munged that Slurm uses, where that is not munge's own; else empty."""
    for line in _scontrol(env, "show", "config").splitlines():
        name, _, value = line.partition("=")
        if name.strip() == "AuthInfo":
            for option in value.split(","):
                key, _, path = option.strip().partition("=")
                if key == "socket":
                    return path
    return ""


def _scontrol(env: Mapping[str, str], *arguments: str) -> str:
    """What `scontrol` prints; empty if it cannot be asked."""
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
        f"this process is a task of Slurm's, but {variable} is not set, which gives the "
        "rendezvous: start with srun, or set HERRING_RENDEZVOUS=HOST:PORT"
    )
