"""Emulates hosts on this machine, with a real sshd in each network namespace.

The cluster neither uses nor changes the system's own ssh: its configuration, keys and known hosts
are in its own folder. Only its configuration of ssh knows the names of its hosts.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

from herring_lab.emulate import Cluster

__all__ = ["SshCluster", "gone", "why_no_sshd"]

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
_SEPARATION = pathlib.Path("/run/sshd")  # an empty folder that sshd requires
_LAUNCHER = 0  # the host on which `herring run` is started
_START_SECONDS = 20.0
_DAEMON = """\
ListenAddress {address}
Port {port}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
MaxStartups 100
PidFile none
"""
_CLIENT = """\
{hosts}
Host *
  Port {port}
  User root
  IdentityFile {folder}/{key}
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/{known}
  StrictHostKeyChecking yes
"""


def why_no_sshd() -> str | None:
    """Returns why hosts with sshd cannot run here; None if they can."""
    if os.geteuid() != 0:
        return "needs root"
    if SSHD is None:
        return "needs sshd: apt-get install openssh-server"
    for tool in ("ssh", "ssh-keygen", "ip", "tc", "nsenter", "setpriv"):
        if shutil.which(tool) is None:
            return f"needs {tool}: apt-get install openssh-client iproute2 util-linux"
    return None


def gone(pids: Sequence[int], seconds: float = 60.0) -> bool:
    """Returns whether all processes end within `seconds`."""
    deadline = time.monotonic() + seconds
    while any(_is_alive(pid) for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _is_alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0] not in "ZX"
    return False


class SshCluster:
    """A context manager for `size` emulated hosts, each with an sshd.

    Args:
        folder: an existing folder for the cluster's files.
        size: the number of hosts; they are called ``herring-host0`` and so on.
    """

    def __init__(self, folder: pathlib.Path, size: int = 4) -> None:
        self.folder = folder
        self.size = size
        self.names = [f"herring-host{number}" for number in range(size)]
        self._made_folder = not _SEPARATION.exists()
        self._log = (folder / "sshd.log").open("ab")
        self.hosts = Cluster(size)
        try:
            self.port = self._free_port()
            self._write()
            self._daemons = [self._daemon(number) for number in range(size)]
            self._until_they_answer()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> SshCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def address(self, number: int) -> str:
        """Returns a host's address."""
        return self.hosts.address(number)

    def ssh(self, name: str = "ssh_config") -> str:
        """Returns the ssh command with one of the cluster's configurations."""
        return f"ssh -F {self.folder / name}"

    def start(
        self, *arguments: str, ssh: str = "", more: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Starts `herring run` on the first host."""
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith("HERRING_")
        }
        return subprocess.Popen(
            [
                *("nsenter", f"--net=/run/netns/{self.hosts.namespace(_LAUNCHER)}"),
                *(sys.executable, "-m", "herring.command.cli", "run", *arguments),
            ],
            env={
                **kept,
                "HERRING_SSH": ssh or self.ssh(),
                "OMP_NUM_THREADS": "1",
                **(more or {}),
            },
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *arguments: str, ssh: str = "", seconds: float = 60.0) -> tuple[int, str]:
        """Runs `herring run` on the first host to its end; returns its status and output."""
        process = self.start(*arguments, ssh=ssh)
        try:
            output, _ = process.communicate(timeout=seconds)
        finally:
            process.kill()
            process.communicate()
        return process.returncode, output

    def sessions(self, number: int) -> list[int]:
        """Returns the IDs of the processes of a host's sshd that serve connections."""
        listening = self._daemons[number].process.pid
        found = []
        for entry in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[1]) == listening:
                    found.append(int(entry.name))
        return found

    def kill_sessions(self, number: int) -> None:
        """Kills the processes that `sessions` returns."""
        for pid in self.sessions(number):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def set_link(self, number: int, up: bool) -> None:
        """Disconnects a host from the switch, or connects it again."""
        switch = self.hosts.namespace(number).rpartition("-")[0] + "-sw0"
        where = ["ip", "-n", switch, "link", "set", f"p{number}"]
        subprocess.run([*where, "up" if up else "down"], check=True, timeout=10)

    def log(self) -> str:
        """Returns what the daemons have logged."""
        return (self.folder / "sshd.log").read_text(errors="replace")

    def close(self) -> None:
        """Ends the cluster. Further calls do nothing."""
        for number in range(len(getattr(self, "_daemons", []))):
            self.kill_sessions(number)
        self.hosts.close()
        self._log.close()
        if self._made_folder:
            with contextlib.suppress(OSError):
                _SEPARATION.rmdir()

    def _free_port(self) -> int:
        # The hosts' namespaces have no listeners yet, so a port that is free here is free there.
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return int(probe.getsockname()[1])

    def _write(self) -> None:
        _SEPARATION.mkdir(mode=0o755, exist_ok=True)
        for key in ("host_key", "user_key", "other_key"):
            make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / key)]
            subprocess.run(make, check=True, timeout=30)
        (self.folder / "authorized_keys").write_text((self.folder / "user_key.pub").read_text())
        (self.folder / "known").write_text("* " + (self.folder / "host_key.pub").read_text())
        (self.folder / "known_none").touch()
        hosts = "\n".join(
            f"Host {name}\n  HostName {self.address(number)}"
            for number, name in enumerate(self.names)
        )
        for name, key, known in (
            ("ssh_config", "user_key", "known"),
            ("ssh_config_other_key", "other_key", "known"),
            ("ssh_config_unknown_host", "user_key", "known_none"),
        ):
            text = _CLIENT.format(
                hosts=hosts, port=self.port, folder=self.folder, key=key, known=known
            )
            (self.folder / name).write_text(text)
        # This configuration has a wrong port and key, for tests of the options that set them.
        bare = _CLIENT.format(
            hosts=hosts, port=1, folder=self.folder, key="other_key", known="known"
        )
        (self.folder / "ssh_config_bare").write_text(bare)

    def _daemon(self, number: int) -> object:
        config = self.folder / f"sshd_config_{number}"
        config.write_text(
            _DAEMON.format(address=self.address(number), port=self.port, folder=self.folder)
        )
        return self.hosts.popen(
            number,
            [str(SSHD), "-D", "-e", "-f", str(config)],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
        )

    def _until_they_answer(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        for name in self.names:
            reach = [
                *("nsenter", f"--net=/run/netns/{self.hosts.namespace(_LAUNCHER)}"),
                *(*self.ssh().split(), "-o", "BatchMode=yes", name, "true"),
            ]
            while (done := subprocess.run(reach, capture_output=True, timeout=20)).returncode:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{name} does not answer: {done.stderr!r}\n{self.log()}")
                time.sleep(0.1)
