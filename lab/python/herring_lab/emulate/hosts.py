"""What runs on an emulated host, and what the host has counted."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import subprocess
from typing import Any

__all__ = ["HostCounters", "Job"]


@dataclasses.dataclass(frozen=True)
class HostCounters:
    """What one host's link and TCP stack have counted since the cluster was made.

    Attributes:
      sent_bytes: bytes the host's interface sent, Ethernet headers included.
      received_bytes: bytes the host's interface received.
      switch_drops: packets the switch dropped on the way to this host (queue full).
      retransmits: TCP segments the host sent again.
      timeouts: TCP retransmission time-outs of the host.
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
    """A process on an emulated host, and the highest memory use seen of it.

    Attributes:
      process: the ``subprocess.Popen``.
      host: number of the host it runs on.
      name: what to call it in messages.
    """

    def __init__(self, process: subprocess.Popen[Any], host: int, name: str) -> None:
        self.process = process
        self.host = host
        self.name = name
        self.peak_bytes = 0

    def poll_memory(self) -> int:
        """Returns the peak resident size in bytes known so far (0 before the first reading).

        The kernel keeps the mark itself but drops it with the process: call it now and then.
        """
        with contextlib.suppress(OSError, ValueError):
            for line in pathlib.Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
                if line.startswith("VmHWM:"):
                    self.peak_bytes = max(self.peak_bytes, int(line.split()[1]) * 1024)
        return self.peak_bytes
