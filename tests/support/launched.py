"""Runs launchers, also in the background, and watches the processes of their jobs."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import warm

HERRING = [sys.executable, "-m", "herring.command.cli"]
LIMIT = 600.0  # only bounds hangs
# What the launcher says of a process of an elastic job that has left after notice.
LEFT = "has left the job, as it was told to, and is not started again"


def shell(script: str) -> list[str]:
    """Returns the part of a command line that lets each worker run a script of bash."""
    return ["--", "bash", "-c", script]


def run(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    """Runs a job to its end and captures its output."""
    return warm.run(
        [*HERRING, "run", *arguments],
        stdin=options.pop("stdin", subprocess.DEVNULL),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
        **options,
    )


class Job:
    """A launcher that runs in the background; its output is read line by line."""

    def __init__(
        self, *arguments: str, stdout: int = subprocess.PIPE, env: dict[str, str] | None = None
    ) -> None:
        self.process = warm.Popen(
            [*HERRING, "run", *arguments],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.STDOUT,
        )

    def lines(self, count: int) -> list[str]:
        return [self.process.stdout.readline().decode().rstrip("\n") for _ in range(count)]

    def end(self) -> tuple[int, str]:
        rest = self.process.communicate(timeout=LIMIT)[0].decode()
        return self.process.returncode, rest


def no_ssh(folder: Path) -> str:
    """Makes a program that stands for ssh, and for another host named far; returns its path."""
    ssh = folder / "ssh"
    ssh.write_text('#!/bin/bash\ncd /\nexec env HERRING_HOST_ID=far sh -c "${@: -1}"\n')
    ssh.chmod(0o755)
    return str(ssh)


def gone(pids: Sequence[int]) -> bool:
    """Returns whether all processes end within the limit; unreaped zombies count as ended."""
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        alive = []
        for pid in pids:
            with contextlib.suppress(OSError):
                stat = Path(f"/proc/{pid}/stat").read_text()
                if stat.rpartition(")")[2].split()[0] not in "ZX":
                    alive.append(pid)
        if not alive:
            return True
        time.sleep(0.01)
    return False


def pids_of(lines: Sequence[str]) -> list[int]:
    return [int(number) for line in lines for number in re.findall(r"pid=(\d+)", line)]
