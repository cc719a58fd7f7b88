"""Describes the processes on an emulated host, and the host's counters."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import subprocess
from typing import Any


@dataclasses.dataclass(frozen=True)
class HostCounters:
    """Counters of one host's link and TCP stack since the cluster was made.

    Attributes:
      sent_bytes: bytes the host's interface sent, Ethernet headers included.
      received_bytes: bytes the host's interface received.
      switch_drops: packets to this host that the switch dropped because the queue was full.
      retransmits: TCP segments that the host sent again.
      timeouts: TCP retransmission timeouts of the host.
    """

    sent_bytes: int
    received_bytes: int
    switch_drops: int
    retransmits: int
    timeouts: int

    def __sub__(self, before: HostCounters) -> HostCounters:
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(before))
        return HostCounters(*(now - then for now, then in pairs))

    def __add__(self, other: HostCounters) -> HostCounters:
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(other))
        return HostCounters(*(one + two for one, two in pairs))


class Job:
    """A process on an emulated host, and its peak memory use.

    Attributes:
      process: the ``subprocess.Popen``.
      host: the number of its host.
      name: the name of the process in messages.
    """

    def __init__(self, process: subprocess.Popen[Any], host: int, name: str) -> None:
        self.process = process
        self.host = host
        self.name = name
        self.peak_bytes = 0

    def poll_memory(self) -> int:
        """Returns the largest known resident size in bytes; 0 before the first reading.

        The kernel forgets the peak when the process ends, so call this method now and then.
        """
        with contextlib.suppress(OSError, ValueError):
            for line in pathlib.Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
                if line.startswith("VmHWM:"):
                    self.peak_bytes = max(self.peak_bytes, int(line.split()[1]) * 1024)
        return self.peak_bytes
