"""Connections of strangers: what they say, how they say it, and how many are open at a time.

A stranger may know the name of the job and may have recorded what a member said, but does not know
the secret. All strangers of a crowd share one thread, so thousands cost little of the machine that
also trains.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import heapq
import hmac
import itertools
import random
import selectors
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator

MAGIC = b"HRRING\r\n"
HELLO = 72  # bytes of a ClientHello
SERVER_HELLO = 80
PATIENCE = (0.05, 1.0, 15.0)  # seconds for which a stranger may stay
MOST_ANSWERED = 120  # bytes that a process of the job says to one who has proved nothing


def hello(job: str, version: int, rank: int = 1, incarnation: int = 0) -> bytes:
    """Returns a ClientHello with a new nonce."""
    return (
        MAGIC
        + struct.pack("<HBBIII", version, 1, 0, rank, 0, incarnation)
        + hashlib.sha256(job.encode()).digest()[:16]
        + random.randbytes(32)
    )


def record_member(address: tuple[str, int], job: str, secret: bytes, version: int) -> bytes:
    """Returns what a member said in its hello, which strangers may have recorded.

    Raises:
      OSError: The process at `address` did not accept the member.
    """
    said = hello(job, version)
    with socket.create_connection(address, 20) as member:
        member.settimeout(20)
        member.sendall(said)
        heard = b""
        while len(heard) < SERVER_HELLO:
            heard += member.recv(SERVER_HELLO - len(heard)) or b"\0" * SERVER_HELLO
        proof = hmac.digest(secret, b"herring client" + said + heard, "sha256")
        member.sendall(proof)
        verdict = member.recv(40)
        if verdict[:2] != b"\0\0":
            raise OSError(f"a member was refused: {verdict[:2].hex() or 'no answer'}")
    return said + proof


@dataclasses.dataclass(frozen=True)
class Known:
    """What strangers know about the job."""

    job: str
    version: int
    recorded: bytes  # what a member said


#: Pauses in seconds, each with the bytes that follow. b"" means that the stranger says no more.
Script = Iterator[tuple[float, bytes]]


def _garbage(known: Known, rng: random.Random) -> Script:
    yield 0, rng.randbytes(rng.randint(1, 4000))


def _garbage_after_the_magic(known: Known, rng: random.Random) -> Script:
    yield 0, MAGIC + rng.randbytes(rng.randint(1, 500))


def _byte_by_byte(known: Known, rng: random.Random) -> Script:
    for byte in hello(known.job, known.version):
        yield rng.uniform(0.01, 0.2), bytes([byte])


def _silent(known: Known, rng: random.Random) -> Script:
    yield from ()


def _half_closed(known: Known, rng: random.Random) -> Script:
    yield 0, b""


def _unproven(known: Known, rng: random.Random) -> Script:
    yield 0, hello(known.job, known.version, rng.randint(0, 9))


def _wrong_secret(known: Known, rng: random.Random) -> Script:
    yield 0, hello(known.job, known.version, rng.randint(0, 9))
    yield 0.05, rng.randbytes(32)


def _replayed(known: Known, rng: random.Random) -> Script:
    yield 0, known.recorded


def _replayed_hello(known: Known, rng: random.Random) -> Script:
    yield 0, known.recorded[:HELLO]


def _other_job(known: Known, rng: random.Random) -> Script:
    yield 0, hello("another-job", known.version, incarnation=rng.getrandbits(32))


def _other_version(known: Known, rng: random.Random) -> Script:
    yield 0, hello(known.job, rng.randint(0, 65535))


def _huge_lengths(known: Known, rng: random.Random) -> Script:
    yield 0, hello(known.job, known.version) + b"\xff" * 72
    yield 0.01, struct.pack("<BBHI", 9, 0, 0, 0xFFFFFFFF) + b"\xff" * 65536


def _tls(known: Known, rng: random.Random) -> Script:
    body = b"\x03\x03" + rng.randbytes(32) + b"\0\0\x02\x13\x01\x01\0\0\0"
    shake = b"\x01" + len(body).to_bytes(3, "big") + body
    yield 0, b"\x16\x03\x01" + len(shake).to_bytes(2, "big") + shake


def _http(known: Known, rng: random.Random) -> Script:
    yield 0, b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 999999999999999999\r\n\r\n"


def _endless_http(known: Known, rng: random.Random) -> Script:
    yield 0, b"GET /metrics HTTP/1.1\r\n"
    for number in itertools.count():
        yield 0.02, f"X-{number}: {'a' * 60}\r\n".encode()


KINDS: dict[str, Callable[[Known, random.Random], Script]] = {
    "garbage": _garbage,
    "garbage after the magic": _garbage_after_the_magic,
    "byte by byte": _byte_by_byte,
    "silent": _silent,
    "half closed": _half_closed,
    "hello without proof": _unproven,
    "wrong secret": _wrong_secret,
    "replayed hello and proof": _replayed,
    "replayed hello": _replayed_hello,
    "another job": _other_job,
    "another version": _other_version,
    "huge lengths": _huge_lengths,
    "TLS": _tls,
    "HTTP": _http,
    "endless HTTP": _endless_http,
}


@dataclasses.dataclass(frozen=True)
class Target:
    """A port of the job.

    Attributes:
      place: What listens there, for people.
      port: The port, on the loopback interface.
      answers: Whether it may answer everybody, as the status does on a loopback address.
    """

    place: str
    port: int
    answers: bool = False


class _Stranger:
    def __init__(self, target: Target, script: Script, leaves: float) -> None:
        self.target, self.script, self.leaves = target, script, leaves
        self.heard = 0
        self.left = b""  # to be said, when the system takes it


class Crowd:
    """Strangers that come, speak and stay until they are thrown out or have had enough.

    Attributes:
      targets: Where the next ones go.
      rng: What decides about them.
      stays: For how many seconds they stay if they are not thrown out.
      came: Connections made, by kind and place.
      refused: Connections that the system did not make.
      leaks: Answers that strangers should not have got.
      ended: Connections that the job ended.
    """

    def __init__(self, targets: list[Target], known: Known, rng: random.Random) -> None:
        self.targets, self._known, self.rng = targets, known, rng
        self._selector = selectors.DefaultSelector()
        self._due: list[tuple[float, int, _Stranger, socket.socket]] = []
        self._number = itertools.count()
        self._open: dict[socket.socket, _Stranger] = {}
        self.came: Counter[tuple[str, str]] = Counter()
        self.refused, self.ended = 0, 0
        self.stays: tuple[float, ...] = PATIENCE
        self.leaks: list[str] = []

    def __len__(self) -> int:
        return len(self._open)

    def attack(self, count: int, seconds: float, burst: int = 1, most: int = 1500) -> int:
        """Makes connections, spread over a time in bursts; returns how many.

        No more than `most` are open at a time: who has been there longest leaves.
        """
        start = time.monotonic()
        made = 0
        while (now := time.monotonic()) < start + seconds or made < count:
            wanted = min(int(count * (now - start) / seconds) // burst * burst + burst, count)
            while made < wanted:
                if len(self._open) >= most:
                    self._drop(next(iter(self._open)))
                self._come()
                made += 1
            self._turn(0.01)
        return made

    def leave(self) -> None:
        """Ends all connections that are still open."""
        for one in list(self._open):
            self._drop(one)
        self._due.clear()

    def _come(self) -> None:
        target = self.rng.choice(self.targets)
        kind = self.rng.choice(list(KINDS))
        one = socket.socket()
        one.setblocking(False)
        try:
            # Many come from hosts of their own, others from the host of the members.
            one.bind((f"127.0.0.{self.rng.choice([1, 77, self.rng.randint(2, 254)])}", 0))
            one.connect_ex(("127.0.0.1", target.port))
            self._selector.register(one, selectors.EVENT_READ)
        except OSError:
            one.close()
            self.refused += 1
            return
        self.came[kind, target.place] += 1
        now = time.monotonic()
        leaves = now + self.rng.choice(self.stays)
        stranger = _Stranger(target, KINDS[kind](self._known, self.rng), leaves)
        self._open[one] = stranger
        self._next(stranger, one, now)

    def _next(self, stranger: _Stranger, one: socket.socket, now: float) -> None:
        pause, stranger.left = next(stranger.script, (1e9, b""))
        due = min(now + pause, stranger.leaves)
        heapq.heappush(self._due, (due, next(self._number), stranger, one))

    def _turn(self, seconds: float) -> None:
        for key, _ in self._selector.select(seconds):
            self._hear(key.fileobj)  # type: ignore[arg-type]
        now = time.monotonic()
        while self._due and self._due[0][0] <= now:
            _, _, stranger, one = heapq.heappop(self._due)
            if self._open.get(one) is not stranger:
                continue
            if now >= stranger.leaves:
                self._drop(one)
                continue
            self._say(stranger, one, now)

    def _say(self, stranger: _Stranger, one: socket.socket, now: float) -> None:
        try:
            if stranger.left:
                one.send(stranger.left)  # a part is enough
            else:
                one.shutdown(socket.SHUT_WR)
        except BlockingIOError:
            pass
        except OSError:
            self._ends(one)
            return
        self._next(stranger, one, now)

    def _hear(self, one: socket.socket) -> None:
        stranger = self._open[one]
        try:
            heard = one.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            heard = b""
        if not heard:
            self._ends(one)
            return
        stranger.heard += len(heard)
        if stranger.heard > MOST_ANSWERED and not stranger.target.answers:
            self.leaks.append(f"{stranger.target.place}: {heard[:60]!r}")

    def _ends(self, one: socket.socket) -> None:
        self.ended += 1
        self._drop(one)

    def _drop(self, one: socket.socket) -> None:
        del self._open[one]
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(one)
        if self.rng.random() < 0.3:  # leaves rudely
            with contextlib.suppress(OSError):
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        one.close()
