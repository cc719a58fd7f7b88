"""The processes of a job, as its launcher knows them."""

from __future__ import annotations

from dataclasses import dataclass

from herring.launch.job import Task
from herring.launch.processes import Process
from herring.launch.ssh import Connection

__all__ = ["Child"]


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
    def where(self) -> str:
        """For a message: its host, if that is another."""
        return f" on {self.connection.host.name}" if self.connection is not None else ""
