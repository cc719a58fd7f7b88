"""The agents of a job on its other hosts."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from herring.errors import ConfigurationError
from herring.launch.frames import kind
from herring.launch.hosts import Host
from herring.launch.options import RunOptions
from herring.launch.processes import LEFTOVER_SECONDS, Process, Processes
from herring.launch.ssh import Connection, Listeners
from herring.rendezvous.network import is_reachable_address, loopback_address, own_address
from herring.rendezvous.settings import value_of

_FAR_SECONDS = 5.0  # the additional time that agents have to end their processes


def workers_on(options: RunOptions, host: Host | None) -> int:
    """Returns the number of workers on a host; None stands for this machine."""
    return sum(
        count
        for each, count in options.layout.workers
        if (each.local if host is None else each == host)
    )


class Agents:
    """The agents on all hosts other than this machine; there may be none."""

    def __init__(self, options: RunOptions, processes: Processes, listeners: Listeners) -> None:
        """Starts nothing yet."""
        self._options = options
        self._processes = processes
        self._listeners = listeners
        self._all: list[Connection] = []
        self._own = ""  # the identity of this machine
        self._job: dict[str, object] = {}  # what every agent gets
        setting: float = value_of(os.environ, "HERRING_CONNECT_TIMEOUT")
        self._seconds = setting if options.start_timeout is None else options.start_timeout

    def reach(self, passed: dict[str, str], horovod: bool, turn: Callable[[float], bool]) -> bool:
        """Starts all agents at once, and waits until all are ready.

        Args:
            horovod: Whether ``import horovod`` finds `herring.horovod`.
            turn: Serves the selector once, until the given time (`time.monotonic`) at the latest;
                returns whether the job goes on.

        Returns:
            Whether the job goes on.

        Raises:
            HostError: A host cannot be reached, or has no Herring.
            CommandError: The command or the working directory does not exist on a host.
            ConfigurationError: This process has no working directory.
        """
        options = self._options
        self._job = {
            "folder": _working_directory() if options.several else "",
            "environment": passed,
            "command": list(options.command),
            "horovod": horovod,
            "grace": options.grace,
        }
        for host in options.layout.remote:
            self._begin(host, workers_on(options, host))
        return self._wait_for(lambda each: each.ready is not None, self._all, turn)

    def _begin(self, host: Host, workers: int) -> Connection:
        options = self._options
        connection = Connection(host, options.ssh, self._seconds, self._processes, self._listeners)
        self._all.append(connection)
        connection.out.send(kind.JOB, 0, {**self._job, "workers": workers})
        return connection

    def add(self, host: Host) -> None:
        """Starts the agent of a host that was named later; the job does not end if that fails."""
        connection = self._begin(host, host.slots)
        connection.added = True
        connection.answer_by = time.monotonic() + self._seconds

    def twin(self, connection: Connection, beside: bool) -> str:
        """Returns another name of the host of a connection, under which it is used; or nothing.

        Args:
            beside: Whether this machine has workers, too.
        """
        identity = (connection.ready or {}).get("host")
        if beside and identity == self._own:
            return "this machine"
        others = [each for each in self._all if each is not connection and not each.lost]
        same = (each for each in others if (each.ready or {}).get("host") == identity)
        return next((each.host.name for each in same), "")

    def require_different_hosts(self, own: str) -> None:
        """Raises ConfigurationError if the hosts of workers are two names of one host."""
        self._own = own
        found: dict[str, str] = {}
        for host, _ in self._options.layout.workers:
            identity = own if host.local else str((self.to(host).ready or {}).get("host", host))
            other = found.setdefault(identity, host.name)
            if other != host.name:
                raise ConfigurationError(
                    f"{other} and {host.name} are the same host: name it once, with all of its "
                    "slots, because its ranks share memory (if they are two hosts, give each its "
                    "own HERRING_HOST_ID)"
                )

    def rendezvous(self, turn: Callable[[float], bool]) -> tuple[str, int]:
        """Makes the agent of rank 0's host listen.

        Returns:
            HOST:PORT, empty if the job does not go on; and a port on that host that is kept free.

        Raises:
            HostError: The host is lost.
        """
        first = self.to(self._options.layout.workers[0][0])
        interface = self._options.interface or value_of(os.environ, "HERRING_INTERFACE")
        first.out.send(kind.LISTEN, 0, {"interface": interface})
        self._wait_for(lambda each: bool(each.address), [first], turn)
        return first.address, first.store_port

    def own_address(self) -> str:
        """Returns the address at which other hosts reach this one; loopback if there are none."""
        if not self._options.several:
            return loopback_address()
        interface = self._options.interface or value_of(os.environ, "HERRING_INTERFACE")
        if interface:
            return own_address(interface=interface)
        for connection in self._all:
            address = str((connection.ready or {}).get("client", ""))
            if is_reachable_address(address):
                return address
        first = self._all[0].host.name.rpartition("@")[2] if self._all else ""
        return own_address(first)

    def to(self, host: Host) -> Connection:
        """Returns the agent's connection on `host`."""
        return next(each for each in reversed(self._all) if each.host == host)

    def latest(self, name: str) -> Connection | None:
        """Returns the latest connection to a host of this name, or None."""
        return next((each for each in reversed(self._all) if each.host.name == name), None)

    def of(self, process: Process) -> Connection | None:
        """Returns the connection whose ssh is `process`, or None."""
        return next((each for each in self._all if each.process is process), None)

    # Ending.

    def next_deadline(self) -> float | None:
        """Returns when `on_time` must be called next, or None."""
        deadlines = [each.give_up_at for each in self._all if each.give_up_at is not None]
        deadlines += [each.answer_by for each in self._all if each.answer_by is not None]
        return min(deadlines, default=None)

    def on_time(self, now: float) -> None:
        """Kills every ssh whose time to end or to reach its agent is over."""
        for connection in self._all:
            if connection.answer_by is not None and now >= connection.answer_by:
                connection.answer_by = None
                if connection.ready is None:
                    connection.refusal = connection.explain_silence(self._seconds)
                    self._processes.signal(connection.process, signal.SIGKILL)
            if connection.give_up_at is not None and now >= connection.give_up_at:
                connection.give_up_at = None
                self._processes.signal(connection.process, signal.SIGKILL)

    def doubt(self, now: float) -> None:
        """Limits the wait for hosts to report, after all processes were killed."""
        for connection in self._all:
            connection.give_up_at = connection.give_up_at or now + _FAR_SECONDS

    def leave(self, turn: Callable[[float], bool]) -> None:
        """Lets the agents end remaining processes within seconds; every ssh then ends, too.

        Args:
            turn: See `reach`; the returned value is ignored.
        """
        deadline = time.monotonic() + _FAR_SECONDS + LEFTOVER_SECONDS
        for connection in self._all:
            if connection.ready is None:  # nothing was started there
                connection.close()
                self._processes.signal(connection.process, signal.SIGKILL)
        while time.monotonic() < deadline:
            for connection in self._all:
                # The end of the input must not overtake pending frames.
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
    """Returns the shell's name for it: links may lead elsewhere on another host."""
    try:
        folder = os.getcwd()
        named = os.environ.get("PWD", "")
        return named if named.startswith("/") and os.path.samefile(named, folder) else folder
    except OSError as error:
        raise ConfigurationError(f"there is no working directory ({error.strerror})") from None
