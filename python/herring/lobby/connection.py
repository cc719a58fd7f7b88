"""A process's connection to the lobby of its elastic job."""

from __future__ import annotations

import contextlib
import dataclasses
import hmac
import os
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

from herring import _core
from herring.base.reminders import Reminders
from herring.base.units import in_seconds
from herring.errors import (
    AuthenticationError,
    ConfigurationError,
    HerringError,
    PeerLostError,
    ShutdownError,
    TimeoutError,
)
from herring.lobby import versions
from herring.lobby.service import keep_alive
from herring.rendezvous.channel import LOBBY, Channel, call
from herring.rendezvous.identity import host_identity

_CALL_SECONDS = 5.0
_AGAIN_SECONDS = 0.2  # from one attempt to reach the lobby to the next
_MOST_REFUSALS = 10
_COMMIT_SECONDS = 5.0  # the first rank waits for so long to hear of the others
_FINISH_SECONDS = 5.0  # for the lobby to hear that the training has ended


class TrainingEnded(HerringError):
    """The training has ended; there is nothing to join any more."""


class MemberLeft(HerringError):
    """This process was to leave the job, and is in no generation any more."""


@dataclasses.dataclass(frozen=True)
class Generation:
    """What a member needs to know of its generation."""

    number: int  # 1, 2, and so on
    rank: int  # this worker's rank, or -1 for a server
    size: int  # the number of workers
    servers: int  # the number of dedicated servers
    address: str  # where they meet, as HOST:PORT
    secret: bytes = dataclasses.field(repr=False)  # the secret of this generation


class Connection:
    """The connection to the lobby, which a thread of its own reads and makes again if it breaks.

    A worker of the present generation also learns here that newcomers wait, or that one of its
    workers wants to leave. All workers must end the generation at the same commit. The first rank
    chooses one that is two commits ahead, and passes the commit before it only when all others have
    heard of it. They cannot get there without it, because each step needs the gradients of all.

    Attributes:
        own_address: The address literal of this host on the way to the lobby.
    """

    def __init__(
        self, host: str, port: int, secret: bytes, slot: int, server: bool, patience: float
    ) -> None:
        """Connects.

        Args:
            host: The lobby's host, an address literal.
            server: Whether this process is a dedicated server.
            patience: Seconds for which the lobby may be away.

        Raises:
            AuthenticationError: What listens there does not know the secret.
            ConfigurationError: The lobby has another version.
            TimeoutError: Nobody listens there.
        """
        self._place = host, port
        self._secret = secret
        self._slot = slot
        self._server = server
        self._patience = patience
        self._changed = threading.Condition()
        self._generation: Generation | None = None
        self._told: Generation | None = None  # the next one
        self._ended: Exception | None = None
        self._waits_at: str | None = None  # this process waits for a generation; where it listens
        self._closed = False
        self._leaves = False
        self.job_ends = threading.Event()  # set when somebody ends the whole job
        self._starts = False  # whether the job of the present generation is being started
        self.broken = False  # whether a member of the latest generation is lost
        self._forget_switch()
        self._channel = self._connect()
        _connections.add(self)
        threading.Thread(target=self._read, name="herring-elastic", daemon=True).start()

    def next_generation(self, address: str = "") -> Generation:
        """Leaves the present generation, and waits for the next one.

        Args:
            address: Where this worker listens in case that it becomes rank 0.

        Raises:
            MemberLeft: This process was to leave.
            TrainingEnded: The training has ended.
            PeerLostError: There have been too few workers for too long.
            TimeoutError: The lobby cannot be reached.
        """
        with self._changed:
            self._told = None
            if not self._leaves:
                self._waits_at = address
                self._send({"kind": "wait", "address": address})
            while self._told is None:
                if self._leaves:
                    raise MemberLeft("this process leaves the elastic job")
                if self._ended is not None:
                    raise self._ended
                self._changed.wait(1.0)  # so that Ctrl-C is seen
            self._generation, self._told, self._waits_at = self._told, None, None
            return self._generation

    def leave(self) -> None:
        """Ends the present generation at one of its next commits; others begin the next one."""
        with self._changed:
            self._leaves = True
            self._send({"kind": "leaves"})
            self._changed.notify_all()

    @contextlib.contextmanager
    def starting(self) -> Iterator[None]:
        """Lets the start of the generation's job inside the block end early if a member is lost."""
        try:
            with self._changed:
                self._starts = True
                _core.end_start(self.broken)
            yield
        finally:
            with self._changed:
                self._starts = False
                _core.end_start(False)

    def committed(self, number: int) -> bool:
        """Tells how many steps of the present generation are done.

        Returns:
            Whether the generation ends here, for newcomers or for one that leaves.

        Raises:
            PeerLostError: It ends, but not all workers have heard of it in time.
        """
        self._commits = number
        if not self._news:
            return False
        with self._changed:
            if self._first and number + 1 == self._at:
                self._await_others()
            return self._at is not None and number >= self._at

    def finished(self) -> None:
        """Tells that the training of this worker has ended, and waits until the lobby knows.

        Whoever sees how this process ends then knows that it was after the training.
        """
        deadline = time.monotonic() + _FINISH_SECONDS
        with self._changed:
            self._send({"kind": "finished"})
            while self._ended is None and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)

    def close(self) -> None:
        """Lets go of the lobby."""
        with self._changed:
            self._closed = True
            self._ended = ShutdownError("this process has let go of the lobby of its elastic job")
            self._channel.shut()
            self._changed.notify_all()

    # How a generation ends between two steps.

    def _forget_switch(self) -> None:
        self._commits = 0
        self._news = False  # whether `committed` has to look at what follows
        self._first = False  # whether this worker has to choose the commit
        self._at: int | None = None  # the commit at which the generation ends
        self._heard: dict[int, int] = {}  # by rank: the commit at which it heard of that

    def _choose(self, at: int) -> None:
        self._at = at
        self._heard = {}
        self._send({"kind": "switch", "at": at})

    def _await_others(self) -> None:
        deadline = time.monotonic() + _COMMIT_SECONDS
        others = 0 if self._generation is None else self._generation.size - 1
        while len(self._heard) < others:
            left = 0.0 if self.broken else deadline - time.monotonic()
            if left <= 0:
                raise PeerLostError(
                    f"only {len(self._heard)} of {others} other workers have heard that this "
                    "generation ends at the next commit"
                )
            self._changed.wait(left)
        # A worker without collectives in its steps may be further; then all choose again.
        furthest = max(self._heard.values(), default=0)
        if self._at is not None and furthest >= self._at:
            self._choose(furthest + 2)

    # The thread that reads.

    def _read(self) -> None:
        while not self._closed:
            try:
                self._hear(self._channel.receive(None))
            except (OSError, KeyError, TypeError, ValueError) as error:
                if not self._closed and not self._connect_again():
                    self._end(error)
                    break
        self._channel.close()

    def _hear(self, message: Mapping[str, Any]) -> None:
        with self._changed:
            kind = message["kind"]
            if kind == "generation":
                number = int(message["number"])
                text = f"generation {number} {message['nonce']}".encode()
                self._told = Generation(
                    number,
                    int(message["rank"]),
                    int(message["size"]),
                    int(message["servers"]),
                    str(message["address"]),
                    hmac.digest(self._secret, text, "sha256"),
                )
                self.broken = False
                self._forget_switch()
            elif kind == "broken":
                latest = self._told or self._generation
                if latest is not None and int(message["number"]) == latest.number:
                    self.broken = True
                    if self._starts:
                        _core.end_start(True)
            elif kind == "over":
                self._ended = TrainingEnded("the training of the elastic job has ended")
            elif kind == "failed":
                self._ended = PeerLostError(f"the elastic job ends: {message['why']}")
            elif kind == "ends":
                self.job_ends.set()
            elif kind == "leave":
                self.leave()
            elif kind == "newcomers":
                # `committed` sets and reads these two the other way round, so it misses nothing.
                self._first = self._news = True
                if self._at is None:
                    self._choose(self._commits + 2)
            elif kind == "switch":
                at = int(message["at"])
                if self._commits < at:
                    self._at, self._news = at, True
                self._send({"kind": "commits", "at": self._commits})
            elif kind == "commits":
                self._heard[int(message["rank"])] = int(message["at"])
            self._changed.notify_all()

    def _end(self, error: Exception) -> None:
        with self._changed:
            if self._ended is not None:
                return
            host, port = self._place
            self._ended = TimeoutError(
                f"the lobby of the elastic job at {host} port {port} was lost ({error}) and cannot "
                f"be reached since {self._patience:g} s: start 'herring rendezvous' there again"
            )
            self._changed.notify_all()

    # Connecting.

    def _connect(self, first: bool = True) -> Channel:
        start = time.monotonic()
        deadline, reminders = start + self._patience, Reminders(start)
        host, port = self._place
        refusals = 0
        while True:
            try:
                channel = call(*self._place, self._secret, LOBBY, _CALL_SECONDS, small=False)
                keep_alive(channel.socket)
                self.own_address = str(channel.socket.getsockname()[0])
                return self._greet(channel)
            except AuthenticationError:
                # A lobby that is ending, or to which thousands of strangers connect, closes
                # connections like one with another secret.
                refusals += 1
                enough = first and refusals == _MOST_REFUSALS
                if enough or self._closed or time.monotonic() > deadline:
                    raise
            except OSError as error:
                now = time.monotonic()
                if reminders.due(now):
                    _core.log_warning(
                        f"has tried for {in_seconds(now - start)} to reach the lobby of the "
                        f"elastic job at {host} port {port}: {error}"
                    )
                if self._closed or now > deadline:
                    raise TimeoutError(
                        f"the lobby of the elastic job at {host} port {port} cannot be reached: "
                        f"{error}"
                    ) from None
            time.sleep(_AGAIN_SECONDS)

    def _greet(self, channel: Channel) -> Channel:
        try:
            channel.send(self._hello())
            lobby = f"the lobby of the elastic job at {self._place[0]} port {self._place[1]}"
            if differs := versions.difference(
                channel.receive(_CALL_SECONDS), lobby, "this process"
            ):
                raise ConfigurationError(differs)
            return channel
        except BaseException:
            channel.close()
            raise

    def _hello(self) -> dict[str, Any]:
        mine = self._generation
        return {
            **versions.own(),
            "server": self._server,
            "host": host_identity(),
            "slot": self._slot,
            "generation": 0 if mine is None else mine.number,
            "rank": -1 if mine is None else mine.rank,
            "size": 0 if mine is None else mine.size,
            "leaves": self._leaves,
        }

    def _connect_again(self) -> bool:
        """Returns whether a lobby is there again."""
        with self._changed:  # no other thread sends meanwhile
            self._channel.close()
        try:
            channel = self._connect(first=False)
            with self._changed:
                self._channel = channel
                if self._waits_at is not None:
                    self._send({"kind": "wait", "address": self._waits_at})
            return True
        except (TimeoutError, AuthenticationError):
            pass
        except ConfigurationError as error:
            with self._changed:
                self._ended = error
                self._changed.notify_all()
        return False

    def _send(self, message: Mapping[str, Any]) -> None:
        # The thread that reads sees that the connection is broken.
        with contextlib.suppress(OSError):
            self._channel.send(message)

    def _forget_parent(self) -> None:
        """Lets a forked child, such as a data loader's worker, keep nothing of its parent's.

        Otherwise the lobby would not see the death of the parent while the child lives. The locks
        may be held by threads that the child does not have.
        """
        self._closed = True
        self._ended = ShutdownError("this is a forked child; only its parent is in the elastic job")
        self._changed = threading.Condition()
        self._channel.close()


_connections: weakref.WeakSet[Connection] = weakref.WeakSet()


def _in_forked_child() -> None:
    for one in list(_connections):
        one._forget_parent()


os.register_at_fork(after_in_child=_in_forked_child)
