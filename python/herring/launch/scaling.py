"""Lets an elastic job follow the hosts that a script names: workers are added, and others leave."""

from __future__ import annotations

import os
import selectors
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from herring.errors import ConfigurationError
from herring.launch.agents import Agents
from herring.launch.children import Children
from herring.launch.discovery import OPTION
from herring.launch.ending import Ending
from herring.launch.hosts import THIS_MACHINE, Host
from herring.launch.options import CommandError, RunOptions
from herring.launch.processes import Process, Processes
from herring.launch.restarts import Restarts
from herring.launch.ssh import Connection
from herring.lobby.service import Lobby

_AGAIN = 30.0  # seconds after which a host that was lost is tried again
_SLOW = 30.0  # seconds after which a call of the script that has not ended is worth a warning
_MOST_TEXT = 1 << 20  # characters that a call of the script may print


@dataclass(eq=False)
class Scaling:
    """Calls the script again and again, and starts and dismisses workers.

    Workers are only told to leave; they do so between two steps. One of them stays until others
    have its state, even if the script names none of the hosts that train.
    """

    _options: RunOptions
    _processes: Processes
    _selector: selectors.BaseSelector
    _children: Children
    _agents: Agents
    _restarts: Restarts
    _ending: Ending
    _start: Callable[[Host, int, int], None]
    _say: Callable[[str, str], None]
    _lobby: Lobby | None = None
    _call: _Call | None = None
    _look_at: float = 0.0  # when to call the script, or to warn that a call has not ended
    _told: str = ""  # why the last call has failed
    _not_before: dict[str, float] = field(default_factory=dict)  # by host: when it is tried again
    # By host: the ranks that were started there.
    _places: dict[str, list[int]] = field(default_factory=dict)
    _hosts: dict[str, Host] = field(default_factory=dict)
    _dismissed: set[int] = field(default_factory=set)  # ranks that were told to leave
    _next_rank: int = 0

    def __post_init__(self) -> None:
        elastic = self._options.elastic
        self._discovery = None if elastic is None else elastic.discovery
        self._most = self._options.workers if elastic is None else elastic.most or 1 << 20
        for host, count in self._options.layout.workers:
            self._hosts[_key(host)] = host
            self._places[_key(host)] = [*range(self._next_rank, self._next_rank + count)]
            self._next_rank += count

    def begin(self, lobby: Lobby) -> None:
        """Begins to call the script, if there is one."""
        if self._discovery is not None:
            self._lobby = lobby
            self._look_at = time.monotonic() + self._discovery.pause

    def next_deadline(self) -> float | None:
        """Returns when `on_time` must be called next, or None."""
        return self._look_at if self._goes_on() else None

    def on_time(self, now: float) -> None:
        """Calls the script if it is time."""
        if not self._goes_on() or now < self._look_at:
            return
        assert self._discovery is not None
        if self._call is not None:
            self._look_at = now + _SLOW
            self._warn(f"{OPTION} {self._discovery.script} has not ended for {_SLOW:g} s")
            return
        self._look_at = now + self._discovery.pause
        pipe = subprocess.PIPE
        try:
            process = self._processes.start(
                OPTION, self._discovery.command, None, (), subprocess.DEVNULL, pipe, pipe
            )
        except CommandError as error:  # there are too many processes, for example
            self._warn(str(error))
            return
        self._call = _Call(process, self._selector)
        self._look_at = now + _SLOW

    def is_call(self, process: Process) -> bool:
        """Heeds what a call of the script has printed; returns whether the process was one."""
        call = self._call
        if call is None or process is not call.process:
            return False
        self._call = None
        printed, said = call.texts()
        self._processes.remove(process)
        if self._goes_on() and self._discovery is not None:
            self._look_at = time.monotonic() + self._discovery.pause
            try:
                hosts = self._discovery.hosts(process.code, printed, said)
            except ConfigurationError as error:
                self._warn(str(error))
            else:
                self._told = ""
                self._follow({_key(host): host for host in hosts}, time.monotonic())
        return True

    def _warn(self, why: str) -> None:
        """Says, but not again and again, that the hosts are not known."""
        if why != self._told:
            self._say("warning", f"{why}; the hosts stay as they are")
        self._told = why

    def lose_host(self, connection: Connection) -> None:
        """Forgets the workers of a host that is lost; it is tried again after a while."""
        name = connection.host.name
        if self._goes_on() and self._agents.latest(name) is connection:
            self._places.pop(name, None)
            self._not_before[name] = time.monotonic() + _AGAIN

    def _goes_on(self) -> bool:
        if self._lobby is None or self._ending.begun:
            return False
        return not (self._lobby.finished or self._lobby.failed)

    def _follow(self, named: dict[str, Host], now: float) -> None:
        """Makes the workers those that the hosts have slots for."""
        for name in [name for name in self._not_before if name not in named]:
            del self._not_before[name]
        surplus = []
        for name, ranks in self._places.items():
            slots = named[name].slots if name in named else 0
            surplus += ranks[slots:]
        staying = sum(len(ranks) for ranks in self._places.values()) - len(surplus)
        self._dismiss(surplus)
        for name, host in named.items():
            ranks = self._places.setdefault(name, [])
            missing = min(host.slots - len(ranks), self._most - staying)
            if missing <= 0 or not self._is_ready(host, now):
                continue
            staying += missing
            for _ in range(missing):
                ranks.append(self._next_rank)
                self._next_rank += 1
                self._start(self._hosts[name], ranks[-1], len(ranks) - 1)
        self._places = {name: ranks for name, ranks in self._places.items() if ranks}

    def _dismiss(self, surplus: list[int]) -> None:
        """Lets workers leave at one of the next commits."""
        assert self._lobby is not None
        training = self._lobby.latest_slots - self._dismissed
        if not training.difference(surplus):
            # Nobody else has the state yet.
            surplus = [rank for rank in surplus if rank != min(training, default=rank)]
        self._dismissed.update(surplus)
        for rank in surplus:
            for ranks in self._places.values():
                if rank in ranks:
                    ranks.remove(rank)
            self._restarts.retire(rank)
        self._lobby.dismiss(surplus)

    def _is_ready(self, host: Host, now: float) -> bool:
        """Returns whether workers can be started on a host; reaches for it if not."""
        name = _key(host)
        if host.local:
            self._hosts.setdefault(name, host)
            return True
        if now < self._not_before.get(name, 0.0):
            return False
        connection = self._agents.latest(name)
        if connection is None or connection.lost:
            self._say("info", f"{name} is new: {OPTION} has named it")
            self._agents.add(host)
            return False
        if connection.ready is None:
            return False
        if twin := self._agents.twin(connection, beside=_key(THIS_MACHINE) in self._places):
            self._say("warning", f"{name} is not used: it is the same host as {twin}")
            self._not_before[name] = float("inf")
            return False
        self._hosts[name] = connection.host
        return True


def _key(host: Host) -> str:
    """Returns what identifies a host, which may have several names if it is this machine."""
    return "" if host.local else host.name


class _Call:
    """A call of the script."""

    def __init__(self, process: Process, selector: selectors.BaseSelector) -> None:
        self.process = process
        self._selector = selector
        self._texts = [_Text(), _Text()]
        for stream, text in zip((process.popen.stdout, process.popen.stderr), self._texts):
            assert stream is not None
            os.set_blocking(stream.fileno(), False)
            selector.register(stream, selectors.EVENT_READ, text)

    def texts(self) -> tuple[str, str]:
        """Returns what the script has written to its output and errors, and closes them."""
        for stream, text in zip(
            (self.process.popen.stdout, self.process.popen.stderr), self._texts
        ):
            if stream is not None and not stream.closed:
                self._selector.unregister(stream)
                while data := stream.read(1 << 16):
                    text.feed(data)
                stream.close()
        out, err = (text.data.decode(errors="replace") for text in self._texts)
        return out, err


class _Text:
    """What comes from a pipe."""

    def __init__(self) -> None:
        self.data = b""

    def feed(self, data: bytes) -> None:
        self.data = (self.data + data)[:_MOST_TEXT]

    def finish(self) -> None:
        """Does nothing: the end of the process counts."""
