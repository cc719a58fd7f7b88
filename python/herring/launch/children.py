"""The processes of a job, as its launcher knows them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from herring.launch.frames import kind
from herring.launch.job import Task
from herring.launch.processes import Process, Processes
from herring.launch.ssh import Connection

__all__ = ["Child", "Children"]


@dataclass
class Child:
    """A process of the job, here or on another host.

    Attributes:
        task: What it does.
        process: The process, if it is here.
        connection: To the host where it is, if that is another.
        pid: Its process id there.
        ended: Whether it has ended.
        code: Popen's return code then.
        joined: Whether it has called ``herring.init()``.
    """

    task: Task
    process: Process | None = None
    connection: Connection | None = None
    pid: int = 0
    ended: bool = False
    code: int = 0
    joined: bool = False

    @property
    def is_server(self) -> bool:
        """Whether it is a dedicated server."""
        return self.task.rank is None

    @property
    def described(self) -> str:
        """For a message: its name, its process id, and its host, if that is another."""
        where = f" on {self.connection.host.name}" if self.connection is not None else ""
        return f"{self.task.name} (process {self.pid}{where})"

    @property
    def left_out(self) -> bool:
        """Whether it is a worker that has ended well and never joined."""
        return not self.is_server and self.ended and self.code == 0 and not self.joined

    def end(self, code: int) -> None:
        """Notes that it has ended."""
        self.ended, self.code = True, code


class Children:
    """All of them, in the order in which they were started."""

    def __init__(self, processes: Processes) -> None:
        """There are none yet.

        Args:
            processes: Those on this machine.
        """
        self._processes = processes
        self._by_number: dict[int, Child] = {}

    def __iter__(self) -> Iterator[Child]:
        return iter(self._by_number.values())

    def __len__(self) -> int:
        return len(self._by_number)

    def add(self, child: Child) -> None:
        """Takes one that is started."""
        self._by_number[child.task.number] = child

    def get(self, number: int) -> Child | None:
        """The one whose task has this number, or None."""
        return self._by_number.get(number)

    def running(self, workers_only: bool = False) -> list[Child]:
        """Those that have not ended."""
        return [c for c in self if not c.ended and not (workers_only and c.is_server)]

    def note_joined(self, ranks: Iterable[int]) -> None:
        """These workers have called ``herring.init()``."""
        for rank in ranks:
            child = self.get(rank)
            if child is not None and not child.is_server:
                child.joined = True

    def signal(self, number: int, workers: bool = True, servers: bool = True) -> None:
        """Sends a signal to those of a kind, wherever they are."""
        for child in self:
            if not (servers if child.is_server else workers):
                continue
            if child.process is not None:
                self._processes.signal(child.process, number)
            elif child.connection is not None:
                child.connection.out.send(kind.SIGNAL, child.task.number, number)
