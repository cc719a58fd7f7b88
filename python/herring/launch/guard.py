"""Ends all processes of a job with the launcher, even if it is killed with SIGKILL.

There are three safeguards, each for what escapes the one before. Every child asks the kernel for
SIGKILL at its parent's death. A small guard process, forked before the first child, sees the
launcher's pipe close and kills the children's process groups. The launcher adopts orphaned
descendants (``PR_SET_CHILD_SUBREAPER``), so that it finds those that left their group.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def child_setup(launcher: int) -> None:
    """Makes the child a process group that dies with the launcher; runs between fork and exec."""
    os.setpgid(0, 0)
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != launcher:  # the launcher died before the line above
        os._exit(1)


def adopt_orphans() -> None:
    """Makes this process the parent of descendants whose own parent has ended."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def adopted(known: set[int]) -> list[int]:
    """Returns the process ids of living children of this process that are not in `known`."""
    found = []
    own = str(os.getpid())
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) in known:
            continue
        with contextlib.suppress(OSError):
            text = (entry / "stat").read_text(encoding="utf-8", errors="replace")
            state, parent = text.rpartition(")")[2].split()[:2]
            if parent == own and state != "Z":
                found.append(int(entry.name))
    return found


def kill_group(group: int, number: int) -> bool:
    """Signals a process group; returns whether it had any processes."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


class Guard:
    """The process that waits for the launcher's death."""

    def __init__(self) -> None:
        read, self._write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(self._write)
                _watch(read)
            finally:
                os._exit(0)
        os.close(read)

    def add(self, group: int) -> None:
        """Adds a process group to those that the guard kills."""
        self._tell(f"+{group}\n")

    def remove(self, group: int) -> None:
        """Removes a group that has ended, because its number may be reused soon."""
        self._tell(f"-{group}\n")

    def dismiss(self) -> None:
        """Ends the guard, after all groups have ended."""
        self._tell("q\n")
        os.close(self._write)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)

    def _tell(self, line: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # the guard was killed
            os.write(self._write, line.encode())


def _watch(read: int) -> None:
    # In a session of its own and without signals: else Ctrl-C would end the guard too early.
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    signal.set_wakeup_fd(-1)
    if read != 0:
        os.dup2(read, 0)
    # Copies of the launcher's output would keep the reader of the output waiting.
    os.closerange(1, 1 << 16)
    groups: set[int] = set()
    rest = b""
    while True:
        data = os.read(0, 4096)
        if not data:
            break
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if line == b"q":
                return
            number = int(line[1:])
            (groups.add if line[:1] == b"+" else groups.discard)(number)
    for group in groups:
        kill_group(group, signal.SIGKILL)
