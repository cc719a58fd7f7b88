"""A process group for torchft, the library that trains on when replicas die and come.

    from herring.torch.torchft import ProcessGroupHerring

    manager = torchft.Manager(pg=ProcessGroupHerring(timeout=timedelta(seconds=30)), ...)

torchft decides who takes part in a step, and calls `configure` when that has changed. Each
`configure` ends this process's job and begins another one with the new members.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from torchft.process_group import ProcessGroupWrapper

from herring.arrays import runtime
from herring.errors import ConfigurationError, HerringError
from herring.rendezvous.detect import WorkerEnvironment
from herring.rendezvous.meet import Meeting
from herring.rendezvous.publication import Wait
from herring.torch.backend.group import HerringProcessGroup
from herring.torch.backend.joining import meet_by_store, worker_again

__all__ = ["ProcessGroupHerring"]

_WHILE = "torchft has configured the process group anew before the operation was complete"


class ProcessGroupHerring(ProcessGroupWrapper):  # type: ignore[misc]
    """torchft's process group over a job of Herring, with other members after each `configure`.

    Args:
      timeout: The timeout of operations, and how long the members may take to come to `configure`.
      **settings: Settings of `herring.init` for each job.
    """

    _pg: HerringProcessGroup | None

    def __init__(self, timeout: timedelta = timedelta(seconds=60), **settings: Any) -> None:
        super().__init__(timeout)
        self._settings = settings
        self._aborted: HerringError | None = None

    def abort(self, errored: bool = True) -> None:
        """Ends the job for all members; with `errored` false, this process only leaves it."""
        group = self._pg
        if errored:
            self._aborted = HerringError("the process group was aborted until it is configured")
        if not errored and group is not None:
            group.leave(_WHILE, self._timeout.total_seconds())
            self._pg = None
        super().abort(errored)

    def _create_pg(self, store: Any, rank: int, world_size: int) -> HerringProcessGroup:
        def met(worker: WorkerEnvironment, patience: float, first_reminder: float) -> Meeting:
            wait = Wait(f"rank {worker.rank} of {worker.size}", patience, first_reminder)
            return meet_by_store(store, worker, "herring", wait)  # torchft's prefix is a new one

        settings = {**self._settings, "connect_timeout": self._timeout}
        if not runtime.start(lambda: worker_again(rank, world_size), met, settings):
            raise ConfigurationError(
                "torchft: this process is in another job already, by herring.init() or by another "
                "process group of Herring; a process is in one job at a time"
            )
        self._aborted = None
        return HerringProcessGroup(store, rank, world_size, self._timeout, (), True)

    def errored(self) -> HerringError | None:
        """Returns why torchft must call `configure`: the loss of a peer, an abort, or None."""
        group = self._pg
        return self._aborted if group is None else group.lost()

    def shutdown(self) -> None:
        """Leaves the job."""
        group, self._pg = self._pg, None
        if group is not None:
            group.shutdown()

    def set_timeout(self, timeout: timedelta) -> None:
        """Sets the timeout of later operations, and of `configure`."""
        self._timeout = timeout
        if self._pg is not None:
            self._pg.set_timeout(timeout)

    def getBackendName(self) -> str:  # noqa: N802
        """Returns the name of the backend."""
        return "torchft-herring"
