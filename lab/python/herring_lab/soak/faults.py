"""Kills or stops random dedicated servers of a job, one after another."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import signal
from collections.abc import Mapping, Sequence
from typing import Any

_HALF = 0.5  # pauses are between half and one and a half of what is asked
_SOON = 0.2  # of the pause: after all servers serve again, if that took longer than the pause
_STOPPED = 4.0  # a stopped process is killed within this time: before or after it is given up


@dataclasses.dataclass
class Fault:
    """Something that was done to a server.

    Attributes:
        at: When its process got the signal (`time.monotonic`).
        what: ``kill`` or ``stop``.
        server: The number of the server.
        pid: Its process.
        kill_at: When this process, which is stopped, will be killed; None if it is not.
        replaced: When another process served in its place; None before that.
    """

    at: float
    what: str
    server: int
    pid: int
    kill_at: float | None = None
    replaced: float | None = None


class Faults:
    """Decides when which server is killed or stopped, and does it."""

    def __init__(self, seed: int, pause: float, stop_share: float, overlap: bool) -> None:
        """Does nothing yet.

        Args:
            seed: Of the random moments and servers.
            pause: Mean seconds from one fault to the next.
            stop_share: The share of faults that stop a server rather than kill it.
            overlap: Whether a fault need not wait until all servers serve again.
        """
        self.done: list[Fault] = []
        self._random = random.Random(seed)
        self._pause = pause
        self._stop_share = stop_share
        self._overlap = overlap
        self._due: float | None = None
        self._calm = False

    @property
    def calm(self) -> bool:
        """Whether all servers served when they were last seen, and no process is stopped."""
        return self._calm

    def look(self, now: float, servers: Sequence[Mapping[str, Any]]) -> None:
        """Notes which servers serve, and kills stopped processes that are due."""
        gone = self._gone()
        for fault in self.done:
            if fault.kill_at is not None and now >= fault.kill_at:
                _signal(fault.pid, signal.SIGKILL)
                fault.kill_at = None
            if fault.replaced is None:
                place = next((one for one in servers if one["server"] == fault.server), None)
                if place and place["state"] == "serving" and place["pid"] not in gone:
                    fault.replaced = now
        waiting = any(fault.replaced is None or fault.kill_at is not None for fault in self.done)
        serve = bool(servers) and all(one["state"] == "serving" for one in servers)
        was, self._calm = self._calm, serve and not waiting
        if self._calm and not was and self._due is not None:
            self._due = max(self._due, now + self._random.uniform(0, _SOON * self._pause))

    def act(self, now: float, servers: Sequence[Mapping[str, Any]]) -> None:
        """Does something to a server if that is due."""
        if self._due is None:
            self._due = now + self._next_pause()
        if now < self._due or not (self._calm or self._overlap):
            return
        gone = self._gone()
        serving = [one for one in servers if one["state"] == "serving" and one["pid"] not in gone]
        victims = [one for one in serving if one["kind"] == "dedicated"]
        if not victims or len(serving) < 2:
            return  # nobody could stand in
        victim = self._random.choice(victims)
        stops = self._random.random() < self._stop_share
        kill_at = now + self._random.uniform(0, _STOPPED) if stops else None
        if _signal(victim["pid"], signal.SIGSTOP if stops else signal.SIGKILL):
            what = "stop" if stops else "kill"
            self.done.append(Fault(now, what, victim["server"], victim["pid"], kill_at))
        self._due = now + self._next_pause()
        self._calm = False

    def end(self) -> None:
        """Kills what is still stopped."""
        for fault in self.done:
            if fault.kill_at is not None:
                _signal(fault.pid, signal.SIGKILL)

    def _gone(self) -> set[int]:
        """Returns the processes of servers that may still look as if they served.

        After others have taken their places, new processes may have the same IDs.
        """
        return {fault.pid for fault in self.done if fault.replaced is None}

    def _next_pause(self) -> float:
        return self._pause * self._random.uniform(_HALF, 1 + _HALF)


def _signal(pid: int, number: int) -> bool:
    """Sends a signal; returns whether the process was there."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
        return True
    return False
