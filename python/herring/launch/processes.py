"""The processes that `herring run`, or its agent on another host, starts on this machine."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from herring.launch import guard
from herring.launch.options import EXIT_NOT_EXECUTABLE, CommandError
from herring.launch.shortage import Shortage

LEFTOVER_SECONDS = 2.0
_KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)  # the latter from a shell around the program


@dataclass
class Process:
    """A started process."""

    popen: subprocess.Popen[bytes]  # the process
    group: int  # the number of its process group; 0 when the group is empty
    ended: bool = False  # whether the process has ended; others in its group may still run
    killed_here: bool = False  # whether it was sent SIGKILL by this process
    shortage: str = ""  # the end of a sentence about how it ended, if memory was short; or empty

    @property
    def pid(self) -> int:
        """The process id."""
        return self.popen.pid

    @property
    def code(self) -> int:
        """Popen's return code, once the process has ended."""
        return int(self.popen.returncode)


class Processes:
    """All started processes, each the leader of a process group; they end with this process."""

    def __init__(self) -> None:
        """Starts the guard; this process must have one thread and no children yet."""
        guard.adopt_orphans()
        self._guard = guard.Guard()
        self._all: list[Process] = []
        self._by_pid: dict[int, Process] = {}
        self._shortage = Shortage()

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
            environment: The whole environment, or None for that of this process.

        Raises:
            CommandError: The system cannot start the process.
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
        process.killed_here |= number == signal.SIGKILL
        if process.group:
            # The first process may have ended and left others in its group.
            guard.kill_group(process.group, number)

    def remove(self, process: Process) -> None:
        """Removes a process that has ended, unless others of its group may still run."""
        if process.ended and not process.group:
            self._all.remove(process)
            if self._by_pid.get(process.pid) is process:
                del self._by_pid[process.pid]

    def reap(self) -> list[Process]:
        """Returns the processes that ended since the last call, the likeliest culprit first."""
        ended = []
        peaks: dict[int, int] = {}
        while True:
            # Look first: what is no process of the job is collected in another way.
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
            _, status, usage = os.wait4(info.si_pid, 0)
            process.popen.returncode = os.waitstatus_to_exitcode(status)
            peaks[process.pid] = usage.ru_maxrss * 1024
            process.ended = True
            ended.append(process)
            if not guard.kill_group(process.group, 0):
                # The group is empty, and the kernel may reuse its number.
                self._guard.remove(process.group)
                process.group = 0
        self._explain(ended, peaks)
        # Deaths that are seen together have no order. A crash is a likelier cause than an exit.
        return sorted(ended, key=lambda process: process.code >= 0)

    def _explain(self, ended: Sequence[Process], peaks: Mapping[int, int]) -> None:
        """Finds out whether memory was short when these processes ended together."""
        killed = [each for each in ended if each.code in _KILLED and not each.killed_here]
        short = bool(ended) and self._shortage.look()
        for process in killed if short else ():
            process.shortage = self._shortage.explain(peaks[process.pid])

    def end_leftovers(self, number: int, seconds: float) -> None:
        """Signals every remaining process, and waits for up to `seconds`.

        These are processes started here, members of their groups, and orphans that left a group.
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
        """Stops guarding the groups, after everything possible was done to end them."""
        for process in self._all:
            if process.group:
                self._guard.remove(process.group)
                process.group = 0

    def close(self) -> None:
        """Ends the guard; to be called when no process is left."""
        self._guard.dismiss()


def prepared(
    command: Sequence[str] | None,
    server_command: Sequence[str],
    environment: dict[str, str],
    listener: socket.socket | None,
) -> tuple[Sequence[str], tuple[int, ...]]:
    """Returns what `Processes.start` takes for a worker or a server.

    Args:
        command: Program and arguments of a worker; None stands for a server.
        environment: The whole environment of the process; changed in place.
        listener: The socket with which rank 0 listens, if this is rank 0.

    Returns:
        The command, and the descriptors that the process inherits.
    """
    if command is None:
        return [*server_command, "--rendezvous", environment["HERRING_RENDEZVOUS"]], ()
    if listener is None:
        return command, ()
    environment["HERRING_RENDEZVOUS_FD"] = str(listener.fileno())
    return command, (listener.fileno(),)


def signals_to_loop(numbers: Sequence[int], stopping: Sequence[int]) -> dict[int, object]:
    """Installs empty handlers, so that only the wake-up descriptor reports these signals.

    Args:
        stopping: Those of them that stay ignored if they were ignored before.
    """
    # The parent may have blocked the signals, and children would inherit that.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
    old: dict[int, object] = {}
    for number in numbers:
        before = signal.getsignal(number)
        if before is signal.SIG_IGN and number in stopping:
            continue  # nohup, or a background job of a script
        old[number] = before if before is not None else signal.SIG_DFL
        signal.signal(number, lambda *_: None)
    return old


def how_ended(code: int) -> str:
    """Describes how a process with Popen's return code `code` ended."""
    if code >= 0:
        return f"exited with status {code}"
    try:
        return f"was killed by {signal.Signals(-code).name} (signal {-code})"
    except ValueError:
        return f"was killed by signal {-code}"
