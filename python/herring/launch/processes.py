"""The processes that `herring run`, or its agent on another host, has started on this machine."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from herring.launch import guard
from herring.launch.job import EXIT_NOT_EXECUTABLE, CommandError

__all__ = ["LEFTOVER_SECONDS", "Process", "Processes", "how_ended", "signals_to_loop"]

LEFTOVER_SECONDS = 2.0


@dataclass
class Process:
    """A started process.

    Attributes:
        popen: The process.
        group: Its process group; 0 once nobody is left in it.
        ended: Whether it has ended; others of its group may go on.
    """

    popen: subprocess.Popen[bytes]
    group: int
    ended: bool = False

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.popen.pid

    @property
    def code(self) -> int:
        """Popen's return code, once it has ended."""
        return int(self.popen.returncode)


class Processes:
    """All of them, each the first of a process group of its own. They end with this process."""

    def __init__(self) -> None:
        """To be made before anything is started, in a process with one thread."""
        guard.adopt_orphans()
        self._guard = guard.Guard()
        self._all: list[Process] = []
        self._by_pid: dict[int, Process] = {}

    def start(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str] | None,
        keep: tuple[int, ...],
        stdin: int | None,
        out: int,
        err: int,
    ) -> Process:
        """Starts a command.

        Args:
            name: How to call it in a message.
            command: Program and arguments.
            environment: All of its environment, or None: this process's own.
            keep: Descriptors that it inherits.
            stdin: As of Popen.
            out: As of Popen.
            err: As of Popen.

        Raises:
            CommandError: The system refuses.
        """
        launcher = os.getpid()
        try:
            popen = subprocess.Popen(
                command,
                env=environment,
                stdin=stdin,
                stdout=out,
                stderr=err,
                pass_fds=keep,
                # This process has one thread, so running Python after fork is safe.
                preexec_fn=lambda: guard.child_setup(launcher),
            )
        except (OSError, subprocess.SubprocessError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise CommandError(
                f"cannot start {name} ({command[0]}): {reason}", EXIT_NOT_EXECUTABLE
            ) from error
        self._guard.add(popen.pid)
        process = Process(popen, popen.pid)
        self._all.append(process)
        self._by_pid[popen.pid] = process
        return process

    def signal(self, process: Process, number: int) -> None:
        """Signals a process and its group."""
        if process.group:
            # Also where the first process has ended: it may have left others in its group.
            guard.kill_group(process.group, number)

    def reap(self) -> list[Process]:
        """Those that have ended since the last call, the most likely cause of a failure first."""
        ended = []
        while True:
            # Look first: only Popen may collect its own child.
            try:
                info = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                break
            if info is None:
                break
            process = self._by_pid.get(info.si_pid)
            if process is None:
                os.waitpid(info.si_pid, 0)  # an adopted orphan, or the guard
                continue
            process.popen.wait()
            process.ended = True
            ended.append(process)
            if not guard.kill_group(process.group, 0):
                # Nobody is left in the group: its number may go to somebody else.
                self._guard.remove(process.group)
                process.group = 0
        # Deaths seen at once come in no order. A crash is more likely the cause than an exit.
        return sorted(ended, key=lambda process: process.code >= 0)

    def end_leftovers(self, number: int, seconds: float) -> None:
        """Signals every process that is left, and waits for up to `seconds`.

        Those may be processes started here, members of their groups, or orphans that left these.
        """
        deadline = time.monotonic() + seconds
        signalled: set[int] = set()
        while True:
            for process in self._all:
                if process.group and process.group not in signalled:
                    signalled.add(process.group)
                    guard.kill_group(process.group, number)
            left = guard.adopted({self._guard.pid})
            for pid in left:
                if pid not in signalled:
                    signalled.add(pid)
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, number)
            self.reap()
            groups = any(each.group and guard.kill_group(each.group, 0) for each in self._all)
            if not (left or groups) or time.monotonic() >= deadline:
                return
            time.sleep(0.005)

    def forget(self) -> None:
        """All that could be done about their groups has been done."""
        for process in self._all:
            if process.group:
                self._guard.remove(process.group)
                process.group = 0

    def close(self) -> None:
        """To be called at the end, when nothing is left."""
        self._guard.dismiss()


def signals_to_loop(numbers: Sequence[int], stopping: Sequence[int]) -> dict[int, object]:
    """Lets the wake-up descriptor alone tell of these signals.

    Args:
        numbers: Which.
        stopping: Of these, the ones that stay ignored if they were.

    Returns:
        The handlers of before.
    """
    # Whoever started us may have blocked them, and those that we start would inherit that.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
    old: dict[int, object] = {}
    for number in numbers:
        before = signal.getsignal(number)
        if before is signal.SIG_IGN and number in stopping:
            continue  # nohup, or a job in the background of a script
        old[number] = before if before is not None else signal.SIG_DFL
        signal.signal(number, lambda *_: None)
    return old


def how_ended(code: int) -> str:
    """In words how a process with Popen's return code `code` has ended."""
    if code >= 0:
        return f"exited with status {code}"
    try:
        return f"was killed by {signal.Signals(-code).name} (signal {-code})"
    except ValueError:
        return f"was killed by signal {-code}"
