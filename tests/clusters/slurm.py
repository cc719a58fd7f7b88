"""A Slurm cluster on this machine: munged, slurmctld, and a slurmd in each network namespace.

The cluster neither uses nor changes the system's own Slurm and munge: its configuration, sockets,
keys and state are in its own folder. No resolver knows the names of its nodes.
"""

from __future__ import annotations

import os
import pathlib
import secrets
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence

from herring_lab.emulate import Cluster

__all__ = ["SlurmCluster", "why_no_slurm"]

_TOOLS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scontrol", "sinfo")
_START_SECONDS = 20.0
_CONTROLLER = 0  # the host of slurmctld and munged, from which jobs are submitted
_CONF = """\
ClusterName=herringtest
SlurmctldHost={first}({address})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=cred_expire=5,socket={folder}/munge.socket
SlurmctldPort=6817
SlurmdPort=6818
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=bf_interval=1,bf_resolution=1,sched_interval=1,bf_hetjob_prio=min
ReturnToService=2
SlurmctldTimeout=300
SlurmdTimeout=300
KillWait=5
MaxArraySize=10
{nodes}
PartitionName=all Nodes={names} Default=YES MaxTime=10 State=UP OverSubscribe=FORCE:8
"""


def why_no_slurm() -> str | None:
    """Returns why a Slurm cluster cannot run here; None if it can."""
    if os.geteuid() != 0:
        return "needs root"
    for tool in (*_TOOLS, "ip", "tc", "nsenter", "setpriv"):
        if shutil.which(tool) is None:
            return (
                f"needs {tool}: apt-get install slurmctld slurmd slurm-client munge iproute2 "
                "util-linux"
            )
    return None


class SlurmCluster:
    """A context manager for `nodes` emulated hosts, each with a slurmd.

    Args:
        folder: an existing folder for the cluster's files, which other users may enter for munged.
        nodes: the number of nodes; by default they are called ``herring-node1`` and so on.
        cpus: the number of CPUs that each node claims to have.
        prefix: what the nodes' names begin with.
    """

    def __init__(
        self, folder: pathlib.Path, nodes: int = 4, cpus: int = 8, prefix: str = "herring-node"
    ) -> None:
        self.folder = folder
        self.size = nodes
        self.names = [f"{prefix}{number}" for number in range(1, nodes + 1)]
        folder.chmod(0o755)
        self._conf = folder / "slurm.conf"
        self.socket = folder / "munge.socket"
        self._output = (folder / "output.log").open("ab")
        self.hosts = Cluster(nodes)
        try:
            self._start(cpus)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> SlurmCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """Returns this process's variables without those of another job, for submitting."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SLURM", "HERRING_", "OMPI_", "PMI"))
        }
        binaries = str(pathlib.Path(sys.executable).parent)
        return {
            **kept,
            "PATH": f"{binaries}{os.pathsep}{kept.get('PATH', '')}",
            "SLURM_CONF": str(self._conf),
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": "1",
            **(more or {}),
        }

    def submit(
        self, argv: Sequence[str], more: Mapping[str, str] | None = None, timeout: float = 60.0
    ) -> subprocess.CompletedProcess[str]:
        """Runs srun, sbatch, scontrol or a similar command on the first host to its end."""
        return subprocess.run(
            self._on(_CONTROLLER, argv),
            env=self.environment(more),
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def on_node(
        self, node: int, argv: Sequence[str], more: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command on a node without Slurm."""
        return subprocess.run(
            self._on(node, argv),
            env=self.environment(more),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def batch(
        self,
        script: str,
        options: Sequence[str] = (),
        more: Mapping[str, str] | None = None,
        timeout: float = 60.0,
    ) -> tuple[int, str]:
        """Runs a batch script to its end; returns its exit status and what it printed."""
        path = self.folder / f"batch-{secrets.token_hex(4)}.sh"
        path.write_text("#!/bin/bash\n" + textwrap.dedent(script))
        output = path.with_suffix(".out")
        done = self.submit(
            ["sbatch", "--wait", f"--output={output}", "--open-mode=append", *options, str(path)],
            more,
            timeout,
        )
        printed = output.read_text() if output.exists() else ""
        return done.returncode, printed + done.stderr

    def log(self) -> str:
        """Returns the last lines of the daemons' logs, for a message."""
        return "\n".join(
            f"== {path.name}\n" + "\n".join(path.read_text(errors="replace").splitlines()[-15:])
            for path in sorted(self.folder.glob("*.log"))
        )

    def close(self) -> None:
        """Ends the cluster. Further calls do nothing."""
        self.hosts.close()
        self._output.close()

    def _on(self, node: int, argv: Sequence[str]) -> list[str]:
        # `ip netns exec` would mount another /sys, with which slurmd fails.
        return ["nsenter", f"--net=/run/netns/{self.hosts.namespace(node)}", *argv]

    def _start(self, cpus: int) -> None:
        address = self.hosts.address
        lines = "\n".join(
            f"NodeName={name} NodeHostname={name} NodeAddr={address(number)} CPUs={cpus} "
            "RealMemory=1000 State=UNKNOWN"
            for number, name in enumerate(self.names)
        )
        self._conf.write_text(
            _CONF.format(
                first=os.uname().nodename,
                address=address(_CONTROLLER),
                folder=self.folder,
                nodes=lines,
                names=",".join(self.names),
            )
        )
        (self.folder / "state").mkdir()
        key = self.folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))
        self._daemon(
            _CONTROLLER,
            "munged",
            "--foreground",
            "--force",  # other users may write to a parent of the folder
            f"--key-file={key}",
            f"--socket={self.socket}",
            f"--pid-file={self.folder}/munged.pid",
            f"--log-file={self.folder}/munged.log",
            f"--seed-file={self.folder}/munged.seed",
            "--num-threads=2",
        )
        self._until(self.socket.exists, "munged's socket")
        self._daemon(_CONTROLLER, "slurmctld", "-D", "-c", "-f", str(self._conf))
        for number, name in enumerate(self.names):
            self._daemon(number, "slurmd", "-D", "-N", name, "-f", str(self._conf))
        self._until(self._ready, "all nodes to be idle")

    def _daemon(self, host: int, *argv: str) -> None:
        self.hosts.popen(
            host,
            argv,
            {"SLURM_CONF": str(self._conf)},
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._output,
        )

    def _ready(self) -> bool:
        done = self.submit(["sinfo", "--noheader", "--Node", "--format=%T"])
        return done.stdout.split() == ["idle"] * self.size

    def _until(self, there: object, what: str) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while not there():  # type: ignore[operator]
            if time.monotonic() > deadline:
                raise TimeoutError(f"{_START_SECONDS:g} s for {what}:\n{self.log()}")
            time.sleep(0.1)
