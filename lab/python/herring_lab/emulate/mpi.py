"""Starts MPI jobs on the lab's hosts with the launcher of MPICH or Open MPI.

``mpiexec`` runs on host 0 and reaches the other hosts through a remote shell, as on real machines.
Here the remote shell is a script that enters a host's network namespace. Ranks use only TCP over
``eth0``. They yield the processor while they wait, because all hosts share this machine.

The launcher knows the hosts as ``host0``, ``host1`` and so on. These are host names in UTS
namespaces, by which Open MPI tells the hosts apart.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence

from herring.base.parts import install_command
from herring.errors import ConfigurationError
from herring_lab.emulate import folders
from herring_lab.emulate.cluster import Cluster


@dataclasses.dataclass(frozen=True)
class _Kind:
    """One implementation of MPI.

    Attributes:
      title: the name in the MPI's own messages.
      launchers: names of launcher programs to try.
      version_word: a word in the output of the right launcher's ``--version``.
      install: how to install it.
      library: the file name that mpi4py's wheel loads, and the name on some systems.
      environment: variables of launcher and ranks in the lab.
      here: variables for ranks that share this machine's memory and use no network.
    """

    title: str
    launchers: tuple[str, ...]
    version_word: str
    install: str
    library: tuple[str, str]
    environment: Mapping[str, str]
    here: Mapping[str, str]


_KINDS = {
    "mpich": _Kind(
        "MPICH",
        ("mpiexec.mpich", "mpiexec.hydra", "mpiexec"),
        "HYDRA",
        "Debian: apt install mpich",
        ("libmpi.so.12", "libmpich.so.12"),
        {
            # Settings for both of MPICH's networks, UCX and libfabric; it is built with one.
            "UCX_TLS": "tcp,self",
            "UCX_NET_DEVICES": "eth0",
            "FI_PROVIDER": "tcp",
            "FI_TCP_IFACE": "eth0",
        },
        {},
    ),
    "openmpi": _Kind(
        "Open MPI",
        ("mpirun.openmpi", "orterun", "mpirun"),
        "Open MPI",
        "Debian: apt install openmpi-bin",
        ("libmpi.so.40", "libmpi.so.40"),
        {
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OMPI_MCA_pml": "ob1",
            "OMPI_MCA_btl": "vader,tcp,self",  # vader: shared memory, only within a host
            "OMPI_MCA_btl_tcp_if_include": "eth0",
            "OMPI_MCA_oob_tcp_if_include": "eth0",
            "OMPI_MCA_mpi_yield_when_idle": "1",
            # No binding, or every host would bind to this machine's first processor.
            "OMPI_MCA_hwloc_base_binding_policy": "none",
            "OMPI_MCA_rmaps_base_oversubscribe": "1",
            "OMPI_MCA_plm_rsh_no_tree_spawn": "1",
            "OMPI_MCA_orte_leave_session_attached": "1",
        },
        {
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OMPI_MCA_pml": "ob1",
            "OMPI_MCA_btl": "vader,self",
            "OMPI_MCA_mpi_yield_when_idle": "1",
            "OMPI_MCA_hwloc_base_binding_policy": "none",
            "OMPI_MCA_rmaps_base_oversubscribe": "1",
        },
    ),
}

#: Names of the MPI implementations that the lab can start.
MPIS = tuple(_KINDS)


@dataclasses.dataclass(frozen=True)
class Rank:
    """One rank of an MPI job.

    Attributes:
      host: the number of the rank's host; ranks are in blocks, host after host.
      argv: the rank's command.
      environment: the rank's variables, beside those of the launcher.
    """

    host: int
    argv: Sequence[str]
    environment: Mapping[str, str]


def require(name: str) -> str:
    """Returns the path of an MPI's launcher.

    Raises:
      ConfigurationError: this MPI is not installed; the error says how to install it.
    """
    kind = _KINDS[name]
    for program in kind.launchers:
        path = shutil.which(program)
        if path is not None and kind.version_word in _output([path, "--version"]):
            return path
    raise ConfigurationError(f"{kind.title} is not installed ({kind.install})")


@functools.lru_cache(None)
def missing(name: str) -> str:
    """Returns why Python programs cannot use an MPI here, and what to install; empty if they can.

    The function starts no job. It looks for the launcher, and loads mpi4py with this MPI in another
    process.
    """
    kind = _KINDS[name]
    try:
        require(name)
    except ConfigurationError as error:
        return str(error)
    script = "import mpi4py; mpi4py.rc.initialize = False\nfrom mpi4py import MPI\n"
    script += "print(MPI.Get_library_version())"
    with folders.temporary("mpi") as directory:
        environment = {**os.environ, **_environment(name, directory)}
        found = _output([sys.executable, "-c", script], environment)
    if kind.title in found:
        return ""
    reason = found.strip().splitlines()[-1:] or ["no answer"]
    return (
        f"mpi4py does not work with {kind.title}: {reason[0][:200]} "
        f"({install_command('mpi')}, or build mpi4py against it)"
    )


def launch(
    name: str,
    cluster: Cluster,
    ranks: Sequence[Rank],
    directory: str,
    labels: bool = False,
) -> tuple[list[str], dict[str, str]]:
    """Returns the command that starts an MPI job from host 0, and its variables.

    Args:
      name: one of `MPIS`.
      cluster: the hosts.
      ranks: the ranks in order.
      directory: an empty folder for the remote shell, which must exist as long as the job.
      labels: whether the launcher begins each line with the rank.

    Raises:
      ConfigurationError: this MPI is not installed; the error says how to install it.
    """
    agent = str(_write_agent(cluster, directory))
    shared = {
        key: value
        for key, value in ranks[0].environment.items()
        if all(rank.environment.get(key) == value for rank in ranks)
    }
    # Launchers label what arrives at once, not lines. So Python must buffer and write whole lines.
    environment = {**shared, **_environment(name, directory), "PYTHONUNBUFFERED": ""}
    hosts = sorted({rank.host for rank in ranks})
    if name == "mpich":
        places = [f"{cluster.address(h)}:{sum(r.host == h for r in ranks)}" for h in hosts]
        options = ["-launcher", "ssh", "-launcher-exec", agent, "-iface", "eth0"]
        options += ["-hosts", ",".join(places)] + (["-prepend-rank"] if labels else [])
    else:
        options = ["--mca", "plm_rsh_agent", agent] + (["--tag-output"] if labels else [])
    argv = ["unshare", "--uts", "sh", "-c", 'hostname host0 && exec "$@"', "sh"]
    argv += [require(name), *options]
    for index, rank in enumerate(ranks):
        argv += [":"] if index else []
        argv += ["--host", f"host{rank.host}"] if name == "openmpi" else []
        own = [f"{k}={v}" for k, v in rank.environment.items() if k not in shared]
        argv += ["-n", "1", "env", *own, *rank.argv]
    return argv, environment


def launch_here(
    name: str, argv: Sequence[str], ranks: int, directory: str
) -> tuple[list[str], dict[str, str]]:
    """Returns the command that starts an MPI job on this machine, and all its variables.

    Args:
      name: one of `MPIS`.
      argv: the command of every rank.
      ranks: the number of ranks, which may exceed the number of processors.
      directory: an empty folder, which must exist as long as the job.

    Raises:
      ConfigurationError: this MPI is not installed; the error says how to install it.
    """
    environment = {**os.environ, **_environment(name, directory, here=True)}
    return [require(name), "-n", str(ranks), *argv], environment


def _write_agent(cluster: Cluster, directory: str) -> pathlib.Path:
    """Writes the remote shell, called like ssh: ``agent [-OPTION ...] HOST COMMAND ...``."""
    cases = [
        f"host{host}|{cluster.address(host)}) name=host{host} space={cluster.namespace(host)} ;;"
        for host in range(cluster.size)
    ]
    enter = "exec nsenter --net=/run/netns/$space setpriv --pdeathsig KILL unshare --uts"
    lines = [
        "#!/bin/sh",
        'while case "$1" in -*) true ;; *) false ;; esac; do shift; done',
        "host=$1; shift",
        "case $host in",
        *cases,
        '*) echo "no host $host in this lab" >&2; exit 1 ;;',
        "esac",
        # A shell runs the command, because Open MPI sends a shell line that first sets its paths.
        f'{enter} sh -c "hostname $name; $*"',
    ]
    path = pathlib.Path(directory, "agent")
    path.write_text("\n".join(lines) + "\n")
    path.chmod(0o700)
    return path


def _environment(name: str, directory: str, here: bool = False) -> dict[str, str]:
    kind = _KINDS[name]
    environment = {**(kind.here if here else kind.environment), "MPI4PY_MPIABI": name}
    wanted, other = kind.library
    # MPIs with the same ABI differ only in the name of the library. Debian's MPICH has its own.
    known = _libraries()
    if wanted not in known and other in known:
        link = pathlib.Path(directory, wanted)
        link.symlink_to(known[other])
        paths = [directory, *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        environment["LD_LIBRARY_PATH"] = ":".join(paths)
    return environment


@functools.lru_cache(None)
def _libraries() -> dict[str, str]:
    """Returns the paths of the libraries that programs find by name."""
    tool = shutil.which("ldconfig") or "/sbin/ldconfig"
    listed = re.findall(r"^\s*(\S+) \(.*\) => (\S+)$", _output([tool, "-p"]), re.MULTILINE)
    return dict(reversed(listed))  # the first entry of a name wins


def _output(argv: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    try:
        done = subprocess.run(
            argv,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{shlex.join(argv[:2])}: {error}"
    return done.stdout
