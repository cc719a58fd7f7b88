"""Connections for small messages, whose ends prove to each other that they know the job's secret.

The proof has the shape of the one that opens a job's connections (docs/protocol.md), with labels of
its own for each purpose. The client proves itself first, so a stranger who connects gets nothing
that depends on the secret::

    client: MAGIC, nonce    server: MAGIC, nonce    client: MAC    server: MAC

Both MACs are HMAC-SHA-256 under the secret, of a label and of both nonces. Messages follow: a
length of four bytes, and as many bytes of JSON.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hmac
import json
import secrets
import select
import socket
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from herring.errors import AuthenticationError
from herring.rendezvous.door import Door

_MAGIC_BYTES = 8
_NONCE_BYTES = 32
_MAC_BYTES = 32
_MOST_BYTES = 4 << 20  # of a message; the facts of a host have some kilobytes
_PROOF_SECONDS = 5.0
# Bytes of a segment where a path may lose full packets. Every path carries this size.
_SMALL_SEGMENT = 1000
_LENGTH = struct.Struct("!I")


@dataclasses.dataclass(frozen=True)
class Purpose:
    """What a connection is for; a proof for one purpose is worth nothing for another."""

    magic: bytes  # the first eight bytes that each end sends
    label: str  # what the proofs cover besides the nonces
    who: str  # the process that listens, for messages


DOCTOR = Purpose(b"HRDOCTR\n", "herring doctor", "'herring doctor'")
LOBBY = Purpose(b"HRLOBBY\n", "herring lobby", "the lobby of an elastic job")


class ChannelError(OSError):
    """The other end has closed the connection, or has sent something that is not a message."""


class Channel:
    """A connection whose ends have proved themselves. A thread may send while one receives."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(None)
        self.socket = connection

    def send(self, message: Mapping[str, Any], seconds: float = 10.0) -> None:
        """Sends a message.

        Raises:
            OSError: The connection is broken, or the other end does not read.
        """
        data = json.dumps(message).encode()
        left = memoryview(_LENGTH.pack(len(data)) + data)
        deadline = time.monotonic() + seconds
        while left:
            _wait(self.socket, select.POLLOUT, deadline)
            with contextlib.suppress(BlockingIOError):
                left = left[self.socket.send(left, socket.MSG_DONTWAIT) :]

    def receive(self, seconds: float | None) -> dict[str, Any]:
        """Returns the next message.

        Args:
            seconds: The time for it; None waits for ever.

        Raises:
            OSError: The connection is broken, or no message came in time.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        (length,) = _LENGTH.unpack(read(self.socket, _LENGTH.size, deadline))
        if length > _MOST_BYTES:
            raise ChannelError(f"a message of {length} bytes is too long")
        try:
            message = json.loads(read(self.socket, length, deadline))
        except ValueError:
            raise ChannelError("the other end sent something that is not JSON") from None
        if not isinstance(message, dict):
            raise ChannelError("the other end sent something that is not a message")
        return message

    def shut(self) -> None:
        """Ends the connection for a thread that may be receiving, which then closes it."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Closes the connection, which no thread uses any more."""
        self.socket.close()


class Listener:
    """Accepts connections on several ports, and calls a function for those with a proof."""

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        secret: bytes,
        purpose: Purpose,
        handle: Callable[[Channel], None],
        warn: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Starts to accept.

        Args:
            sockets: Sockets that listen; `close` closes them.
            handle: Called in a thread of its own with each connection, which it has to close.
            warn: Called with a text if connections are dropped because no thread can be started.
        """
        self._purpose = purpose
        self._secret = secret
        self._handle = handle
        self._door = Door(sockets, self._hear, purpose.who, warn)

    def close(self) -> None:
        """Closes the ports."""
        self._door.close()

    def _hear(self, guest: socket.socket, admit: Callable[[], None]) -> bool:
        try:
            deadline = time.monotonic() + _PROOF_SECONDS
            prove_as_server(guest, self._secret, self._purpose, deadline)
            admit()
            self._handle(Channel(guest))
            return True
        except (OSError, AuthenticationError, ValueError, KeyError, TypeError):
            return False  # a stranger, or a peer that has gone


def call(
    address: str, port: int, secret: bytes, purpose: Purpose, seconds: float, small: bool = True
) -> Channel:
    """Connects to a listener of this job.

    Args:
        address: An address literal.
        small: Whether both ends send small packets only, so that the connection works on a path
            that loses large ones.

    Raises:
        OSError: Nobody listens there, or nobody answers in time.
        AuthenticationError: The process that listens there does not know the secret.
    """
    deadline = time.monotonic() + seconds
    connection = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    try:
        if small:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, _SMALL_SEGMENT)
        connection.settimeout(seconds)
        connection.connect((address, port))
        prove_as_client(connection, secret, purpose, deadline)
        return Channel(connection)
    except BaseException:
        connection.close()
        raise


def prove_as_client(
    connection: socket.socket, secret: bytes, purpose: Purpose, deadline: float
) -> None:
    """Connects; OSError if that breaks, AuthenticationError if the other end is another."""
    hello = purpose.magic + secrets.token_bytes(_NONCE_BYTES)
    connection.settimeout(max(deadline - time.monotonic(), 0.01))
    connection.sendall(hello)
    try:
        answer = read(connection, len(hello), deadline)
        if not answer.startswith(purpose.magic):
            raise AuthenticationError(f"the process that listens there is not {purpose.who}")
        connection.sendall(_mac(secret, purpose, "client", hello + answer))
        proof = read(connection, _MAC_BYTES, deadline)
    except (ChannelError, ConnectionError):
        raise AuthenticationError(
            f"the process that listens there has another secret, or is not {purpose.who}"
        ) from None
    if not hmac.compare_digest(proof, _mac(secret, purpose, "server", hello + answer)):
        raise AuthenticationError("the process that listens there has another secret")


def prove_as_server(
    connection: socket.socket, secret: bytes, purpose: Purpose, deadline: float
) -> None:
    """Opens a connection from the side that listens; OSError or AuthenticationError if it fails."""
    hello = read(connection, _MAGIC_BYTES + _NONCE_BYTES, deadline)
    if not hello.startswith(purpose.magic):
        raise AuthenticationError("a stranger has connected")
    answer = purpose.magic + secrets.token_bytes(_NONCE_BYTES)
    connection.sendall(answer)
    proof = read(connection, _MAC_BYTES, deadline)
    if not hmac.compare_digest(proof, _mac(secret, purpose, "client", hello + answer)):
        raise AuthenticationError("a process with another secret has connected")
    connection.sendall(_mac(secret, purpose, "server", hello + answer))


def read(connection: socket.socket, size: int, deadline: float | None) -> bytes:
    """Returns exactly `size` bytes, or raises OSError at the deadline; None waits for ever."""
    data = bytearray()
    while len(data) < size:
        _wait(connection, select.POLLIN, deadline)
        with contextlib.suppress(BlockingIOError):
            more = connection.recv(size - len(data), socket.MSG_DONTWAIT)
            if not more:
                raise ChannelError("the other end has closed the connection")
            data += more
    return bytes(data)


def _wait(connection: socket.socket, event: int, deadline: float | None) -> None:
    """Waits for an event. Unlike a timeout of the socket, the deadline is this thread's alone.

    Raises:
        OSError: The time is over, or this end has closed the connection.
    """
    if connection.fileno() < 0:
        raise ChannelError("this end has closed the connection")
    poll = select.poll()
    poll.register(connection, event)
    left = None if deadline is None else max(deadline - time.monotonic(), 0.001) * 1000
    if not poll.poll(left):
        raise TimeoutError("timed out")


def _mac(secret: bytes, purpose: Purpose, side: str, text: bytes) -> bytes:
    return hmac.digest(secret, f"{purpose.label} {side}".encode() + text, "sha256")
