"""Starts servers and workers again that have died, in a job that goes on meanwhile."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from herring.base import proc
from herring.launch.children import Child, Children
from herring.launch.ending import Ending
from herring.launch.options import RunOptions, Task
from herring.launch.ssh import Connection
from herring.lobby.notice import EXIT_LEFT
from herring.rendezvous.settings import value_of

# Seconds between the second start of a server and its third one, or between the second death of a
# worker and its next start; later pauses double.
_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 10.0
LONG_LIFE = 60.0  # a death after so long is not one soon after the start
# A server starts within about a second, and so has served if it has lived for so long.
HAS_SERVED = 5.0
# A server that ends with an error, rather than by a signal, may end because its job has failed. The
# workers of a failed job end within this time.
_DOUBT = 2.0
_LOOK = 0.5  # seconds between two looks for stopped servers
_REMEMBERED = 16  # servers that have died; one of them may be the cause of a failure


@dataclass(eq=False)
class Restarts:
    """Replaces servers of a job with ``HERRING_FAILOVER``, and all processes of an elastic job.

    A process that has died gets a successor: a process of the same name with a number of its own.
    So does a server that is stopped for so long that the job has given up on it.
    """

    _options: RunOptions
    _environment: Mapping[str, str]  # the variables of the workers
    _children: Children
    _ending: Ending
    _start: Callable[[Task], None]
    _say: Callable[[str, str], None]  # tells the user; called with a level and a text
    _finished: Callable[[], bool]  # whether the training of an elastic job has ended
    _took_part: Callable[[Child], bool]  # whether it was in the last generation of an elastic job
    _remove: Callable[[Child], None]  # removes an ended process from all that the launcher knows
    _patience: float = 0.0  # after which a stopped server is lost
    _retired: set[int] = field(default_factory=set)  # ranks that are not started again
    _due: dict[int, float] = field(default_factory=dict)  # by process number: when to replace it
    _pauses: dict[str, float] = field(default_factory=dict)  # by name: before the next start
    _short_lives: dict[str, int] = field(default_factory=dict)  # by name: in a row
    _started: dict[int, float] = field(default_factory=dict)
    _stopped: dict[int, float] = field(default_factory=dict)  # since when a process is stopped
    _look_at: float = 0.0

    def __post_init__(self) -> None:
        options = self._options
        servers = len(options.layout.servers)
        nodes = max(options.nodes, len(options.layout.workers))
        # If no server is left, nobody can stand in for the one that dies.
        others = servers > 1 or nodes > servers
        able = servers > 0 and others
        self._failover = able and value_of(self._environment, "HERRING_FAILOVER")
        self._elastic = options.elastic
        self._enabled = self._failover or options.elastic is not None
        if self._enabled:
            self._patience = value_of(self._environment, "HERRING_HEARTBEAT_TIMEOUT") + _LOOK
        self._first_number = self._next_number = options.workers + servers

    def on_end(self, child: Child) -> bool:
        """Returns whether the end of this process is no failure of the job."""
        if child.is_server and signal.SIGTERM in child.told:
            return False  # no worker is left that needs a server
        child.spared = child.replaced or self._has_left(child) or self._begin_pause(child)
        return child.spared

    def may_fail_to_start(self, child: Child) -> bool:
        """Returns whether the process was started after the job, which goes on without it."""
        return child.task.number >= self._first_number

    def retire(self, rank: int) -> None:
        """Starts the worker with this rank not again, whatever it dies of."""
        self._retired.add(rank)
        for number in list(self._due):
            child = self._children.get(number)
            if child is not None and child.task.rank == rank:
                del self._due[number]

    def take_number(self) -> int:
        """Returns a number for a process that is started besides the first ones."""
        self._next_number += 1
        return self._next_number - 1

    def lose_host(self, connection: Connection) -> None:
        """Starts nothing again on a host that is lost."""
        for number in list(self._due):
            child = self._children.get(number)
            if child is not None and child.connection is connection:
                del self._due[number]

    def _has_left(self, child: Child) -> bool:
        if self._elastic is None or child.code != EXIT_LEFT:
            return False
        text = "has left the job, as it was told to, and is not started again"
        self._say("info", f"{child.described} {text}")
        return True

    def _begin_pause(self, child: Child) -> bool:
        if not self._enabled or child.code == 0 or self._ending.begun:
            return False
        if not child.is_server and self._elastic is None:
            return False
        if not self._goes_on():
            # A worker that was not there at the end has no say in how the training ended.
            return self._elastic is not None and not child.is_server and not self._took_part(child)
        if child.task.rank in self._retired:
            return True
        now = time.monotonic()
        name = child.task.name
        started = self._started.get(child.task.number, -math.inf)
        if now - started >= (HAS_SERVED if child.is_server else LONG_LIFE):
            self._pauses[name] = 0.0
        if now - started >= LONG_LIFE:
            self._short_lives[name] = 0
        self._short_lives[name] += 1
        if self._elastic is not None and self._short_lives[name] > self._elastic.restarts:
            return self._give_up(child)
        pause = self._pauses.get(name, 0.0)
        self._pauses[name] = min(max(2 * pause, _FIRST_PAUSE), _LONGEST_PAUSE)
        in_doubt = child.is_server and child.code > 0
        # The time for which a server lived is part of the pause. A worker takes longer to start.
        due = max(now, started + pause) if child.is_server else now + pause
        self._due[child.task.number] = max(due, now + _DOUBT) if in_doubt else due
        return True

    @property
    def pending(self) -> bool:
        """Whether a process is to be started that none is running in place of."""
        return bool(self._due) and self._goes_on()

    def next_deadline(self) -> float | None:
        """Returns when `on_time` must be called next, or None."""
        if not self._enabled or not self._goes_on():
            return None
        return min([*self._due.values(), self._look_at])

    def on_time(self, now: float) -> None:
        """Does everything that is due."""
        if not self._enabled or not self._goes_on():
            return
        if now >= self._look_at:
            self._look_at = now + _LOOK
            self._look_for_stopped(now)
            self._remove_old()
        for number in [number for number, at in self._due.items() if now >= at]:
            del self._due[number]
            child = self._children.get(number)
            if child is not None:
                how = child.how_ended if child.ended else "is stopped"
                self._replace(child, how, now)

    def _goes_on(self) -> bool:
        if self._ending.begun:
            return False
        if self._elastic is None:
            return bool(self._children.running(workers_only=True))
        return not self._finished()

    def _give_up(self, child: Child) -> bool:
        """Returns whether the job goes on without this process."""
        text = f"{child.described} {child.how_ended}, and is not started again"
        times = self._short_lives[child.task.name]
        self._say("error", f"{text}: it died soon after its start {times} times (--restarts)")
        return child.is_server or bool(self._children.running(workers_only=True) or self._due)

    def _look_for_stopped(self, now: float) -> None:
        for child in self._children.running():
            if not child.is_server or child.replaced or child.process is None:
                continue
            if proc.state(child.pid) not in ("T", "t"):
                self._stopped.pop(child.task.number, None)
            elif now - self._stopped.setdefault(child.task.number, now) > self._patience:
                self._due.setdefault(child.task.number, now)

    def _remove_old(self) -> None:
        """Lets a job whose servers die for days not grow."""
        old = [c for c in self._children if c.is_server and c.replaced and c.ended]
        for child in old[:-_REMEMBERED]:
            self._started.pop(child.task.number, None)
            self._remove(child)

    def _replace(self, child: Child, how: str, now: float) -> None:
        child.replaced = True
        self._stopped.pop(child.task.number, None)
        self._say("warning", f"{child.described} {how}; starting another one in its place")
        if not child.ended and not self._failover:
            # Nobody else stands in for it, so the workers would wait for it to the end.
            self._children.signal_one(child, signal.SIGKILL)
        task = replace(child.task, number=self.take_number())
        self._started[task.number] = now
        self._start(task)
