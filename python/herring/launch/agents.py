"""The agents of a job on its other hosts, all of them together."""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections.abc import Callable

from herring.errors import ConfigurationError
from herring.launch.frames import Frame, kind
from herring.launch.hosts import Host
from herring.launch.job import RunOptions
from herring.launch.processes import LEFTOVER_SECONDS, Process, Processes
from herring.launch.ssh import Connection
from herring.rendezvous.network import is_reachable_address, loopback_address, own_address
from herring.rendezvous.settings import value_of

__all__ = ["Agents", "workers_on"]

_FAR_SECONDS = 5.0  # what they get besides, to end what they run


def workers_on(options: RunOptions, host: Host | None) -> int:
    """How many workers a host has; None: this machine."""
    return sum(
        count
        for each, count in options.layout.workers
        if (each.local if host is None else each == host)
    )


class Agents:
    """One for each host other than this machine; there may be none."""

    def __init__(
        self,
        options: RunOptions,
        processes: Processes,
        selector: selectors.BaseSelector,
        on_frame: Callable[[Connection, Frame], None],
        on_text: Callable[[Connection, bytes], None],
    ) -> None:
        """Starts nothing yet.

        Args:
            options: Of the job.
            processes: Takes every ssh into care.
            selector: As of `Connection`.
            on_frame: As of `Connection`.
            on_text: As of `Connection`.
        """
        self._options = options
        self._processes = processes
        self._start = lambda host, seconds: Connection(
            host, options.ssh, seconds, processes, selector, on_frame, on_text
        )
        self._all: list[Connection] = []
        setting: float = value_of(os.environ, "HERRING_CONNECT_TIMEOUT")
        self._seconds = setting if options.start_timeout is None else options.start_timeout

    def reach(self, passed: dict[str, str], horovod: bool, turn: Callable[[float], bool]) -> bool:
        """Starts them, all at once, and waits until all are ready.

        Args:
            passed: Variables that their processes get.
            horovod: Whether ``import horovod`` is to find `herring.horovod`.
            turn: Serves the selector once, until the given time at the latest (of
                `time.monotonic`); whether the job goes on.

        Returns:
            Whether the job goes on.

        Raises:
            HostError: A host cannot be reached, or has no Herring.
            CommandError: The command, or the working directory, is not there on a host.
            ConfigurationError: There is no working directory here.
        """
        options = self._options
        folder = _working_directory() if options.layout.remote else ""
        for host in options.layout.remote:
            connection = self._start(host, self._seconds)
            self._all.append(connection)
            job = {
                "folder": folder,
                "environment": passed,
                "command": list(options.command),
                "workers": workers_on(options, host),
                "horovod": horovod,
                "grace": options.grace,
            }
            connection.out.send(kind.JOB, 0, job)
        return self._wait_for(lambda each: each.ready is not None, self._all, turn)

    def rendezvous(self, turn: Callable[[float], bool]) -> tuple[str, int]:
        """Lets the agent of rank 0's host listen.

        Args:
            turn: As of `reach`.

        Returns:
            HOST:PORT, empty if the job does not go on; and a port there that is kept free.

        Raises:
            HostError: That host is lost.
        """
        first = self.to(self._options.layout.workers[0][0])
        interface = self._options.interface or value_of(os.environ, "HERRING_INTERFACE")
        first.out.send(kind.LISTEN, 0, {"interface": interface})
        self._wait_for(lambda each: bool(each.address), [first], turn)
        return first.address, first.store_port

    def own_address(self) -> str:
        """Where other hosts reach this machine; loopback if there are none."""
        if not self._all:
            return loopback_address()
        interface = self._options.interface or value_of(os.environ, "HERRING_INTERFACE")
        if interface:
            return own_address(interface=interface)
        for connection in self._all:
            address = str((connection.ready or {}).get("client", ""))
            if is_reachable_address(address):
                return address
        return own_address(self._all[0].host.name.rpartition("@")[2])

    def to(self, host: Host) -> Connection:
        """The one on `host`."""
        return next(each for each in self._all if each.host == host)

    def of(self, process: Process) -> Connection | None:
        """The one whose ssh `process` is, or None."""
        return next((each for each in self._all if each.process is process), None)

    # Ending.

    def next_deadline(self) -> float | None:
        """When `on_time` has to be called next, if at all."""
        deadlines = [each.give_up_at for each in self._all if each.give_up_at is not None]
        return min(deadlines, default=None)

    def on_time(self, now: float) -> None:
        """Kills an ssh that has to have ended by now."""
        for connection in self._all:
            if connection.give_up_at is not None and now >= connection.give_up_at:
                connection.give_up_at = None
                self._processes.signal(connection.process, signal.SIGKILL)

    def doubt(self, now: float) -> None:
        """All processes were killed: a host that does not report that soon is not waited for."""
        for connection in self._all:
            connection.give_up_at = connection.give_up_at or now + _FAR_SECONDS

    def leave(self, turn: Callable[[float], bool]) -> None:
        """Lets them end what is left on their hosts, within seconds, and every ssh after them.

        Args:
            turn: As of `reach`; what it returns does not matter.
        """
        deadline = time.monotonic() + _FAR_SECONDS + LEFTOVER_SECONDS
        for connection in self._all:
            if connection.ready is None:  # nothing was started there
                connection.close()
                self._processes.signal(connection.process, signal.SIGKILL)
        while time.monotonic() < deadline:
            for connection in self._all:
                # The end of its input must not overtake what was to be said before.
                if not connection.closing and not connection.out.pending:
                    connection.close()
            if all(each.lost for each in self._all):
                break
            turn(deadline)

    def _wait_for(
        self,
        there: Callable[[Connection], bool],
        connections: list[Connection],
        turn: Callable[[float], bool],
    ) -> bool:
        deadline = time.monotonic() + self._seconds
        while True:
            late = [each for each in connections if not there(each)]
            if not late:
                return True
            if time.monotonic() >= deadline:
                raise late[0].explain_silence(self._seconds)
            if not turn(deadline):
                return False


def _working_directory() -> str:
    """By the name that the shell has for it: links and mounts may end elsewhere on another host."""
    try:
        folder = os.getcwd()
        named = os.environ.get("PWD", "")
        return named if named.startswith("/") and os.path.samefile(named, folder) else folder
    except OSError as error:
        raise ConfigurationError(f"there is no working directory ({error.strerror})") from None
