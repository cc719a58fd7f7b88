"""The processes of a job, as the launcher sees them."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from herring.launch.frames import kind
from herring.launch.options import Task
from herring.launch.processes import Process, Processes, how_ended
from herring.launch.ssh import Connection

_ENDING = (signal.SIGTERM, signal.SIGKILL, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


@dataclass
class Child:
    """A process of the job, on this host or another one."""

    task: Task  # what the process does
    process: Process | None = None  # the process, if it is on this host
    connection: Connection | None = None  # the connection to its host, if that is another one
    pid: int = 0  # the process id on its host
    ended: bool = False  # whether the process has ended
    code: int = 0  # Popen's return code after the end
    ended_at: float = 0.0  # when the end was noticed (`time.time`)
    told: set[int] = field(default_factory=set)  # the signals that the launcher sent before the end
    # When the first of them came that ends a process (`time.time`); infinite if none did.
    stopped_at: float = math.inf
    shortage: str = ""  # the end of a sentence about how it ended, if memory was short; or empty
    joined: bool = False  # whether the process has called ``herring.init()``
    # Whether another process was started in its place, or the job goes on without it.
    replaced: bool = False
    spared: bool = False  # whether the job was to go on when the process ended

    @property
    def is_server(self) -> bool:
        """Whether the process is a dedicated server."""
        return self.task.rank is None

    @property
    def described(self) -> str:
        """Name, process id and, on another host, the host; for messages."""
        where = f" on {self.connection.host.name}" if self.connection is not None else ""
        return f"{self.task.name} (process {self.pid}{where})" if self.pid else self.task.name

    @property
    def how_ended(self) -> str:
        """How the process has ended, in words."""
        return how_ended(self.code) + self.shortage if self.pid else "could not be started"

    @property
    def left_out(self) -> bool:
        """Whether the process is a worker that ended with status 0 and never joined."""
        return not self.is_server and self.ended and self.code == 0 and not self.joined

    @property
    def killed(self) -> bool:
        """Whether the process ended by a signal that the launcher did not send."""
        return self.ended and self.code < 0 and -self.code not in self.told

    def end(self, code: int) -> None:
        """Records that the process has ended."""
        self.ended, self.code, self.ended_at = True, code, time.time()


class Children:
    """All processes of a job, in the order of their start."""

    def __init__(self, processes: Processes) -> None:
        """Creates an empty collection."""
        self._processes = processes
        self._by_number: dict[int, Child] = {}

    def __iter__(self) -> Iterator[Child]:
        return iter(self._by_number.values())

    def __len__(self) -> int:
        return len(self._by_number)

    def add(self, child: Child) -> None:
        """Adds a process that was started."""
        self._by_number[child.task.number] = child

    def remove(self, child: Child) -> None:
        """Removes a process that has ended."""
        del self._by_number[child.task.number]

    def get(self, number: int) -> Child | None:
        """Returns the process whose task has this number, or None."""
        return self._by_number.get(number)

    def running(self, workers_only: bool = False) -> list[Child]:
        """Returns the processes that have not ended."""
        return [c for c in self if not c.ended and not (workers_only and c.is_server)]

    def note_joined(self, ranks: Iterable[int]) -> None:
        """Records that these workers have called ``herring.init()``."""
        joined = set(ranks)
        for child in self:
            if child.task.rank in joined and not child.ended:
                child.joined = True

    def signal(self, number: int, workers: bool = True, servers: bool = True) -> None:
        """Sends a signal to workers, servers or both, on every host."""
        for child in self:
            if servers if child.is_server else workers:
                self.signal_one(child, number)

    def signal_one(self, child: Child, number: int) -> None:
        """Sends a signal to a process and its group."""
        if not child.ended:
            child.told.add(number)
            if number in _ENDING:
                child.stopped_at = min(child.stopped_at, time.time())
        if child.process is not None:
            self._processes.signal(child.process, number)
        elif child.connection is not None:
            child.connection.out.send(kind.SIGNAL, child.task.number, number)
