"""What `herring run` and its agent on another host tell each other through ssh.

The agent begins with `GREETING`; whatever a login shell has printed before is no part of it. Both
sides then send frames: kind, number of the process (0 where there is none), length, payload. JSON
is UTF-8.

From `herring run`:
    JOB: {"folder", "environment", "command", "horovod", "workers", "grace"}
    LISTEN: {"interface"}: on the host of rank 0
    START: {"name", "worker", "listener", "environment"}: the process with this number
    SIGNAL: the number of a signal in decimal, for the process with this number
From the agent:
    READY: {"client"}: the address from which ssh has come, or empty
    LISTENING: {"rendezvous", "store_port"}: its address, HOST:PORT, and a port that is kept free
    STARTED: its process id in decimal
    OUTPUT, ERRORS: bytes that the process has written to its standard output or error
    ENDED: its return code as Popen has it, in decimal
    JOINED: nothing; the rank of this number has called herring.init()
    FAILED: {"message", "status"}: the agent ends; nothing of the job goes on here
    BEAT: nothing; that the network is there. A connection that is gone ends with the first that
        TCP cannot deliver

The end of its input tells the agent to end all it has started.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import struct
from collections.abc import Iterator
from typing import Any

from herring.errors import HerringError

__all__ = ["GREETING", "Frame", "Inbox", "Outbox", "kind"]

GREETING = b"herring-remote 2\n"
_OTHER_GREETING = re.compile(rb"herring-remote \d+\n")
_HEADER = struct.Struct(">BII")
_MAXIMUM_PAYLOAD = 1 << 24
_MAXIMUM_NOISE = 1 << 20


class kind:  # noqa: N801
    """Kinds of frames."""

    JOB, LISTEN, START, SIGNAL = 1, 2, 3, 4
    READY, LISTENING, STARTED, OUTPUT, ERRORS, ENDED, FAILED, BEAT = 65, 66, 67, 68, 69, 70, 71, 72
    JOINED = 73


class Frame:
    """One message.

    Attributes:
        kind: Of `kind`.
        number: Which process it is about.
        payload: Bytes.
    """

    def __init__(self, kind_: int, number: int, payload: bytes) -> None:
        self.kind = kind_
        self.number = number
        self.payload = payload

    def content(self) -> dict[str, Any]:
        """The payload as JSON.

        Raises:
            HerringError: It is none.
        """
        try:
            content = json.loads(self.payload)
        except ValueError:
            content = None
        if not isinstance(content, dict):
            raise HerringError("the other side of ssh sent what is no message of Herring's")
        return content

    def integer(self) -> int:
        """The payload as an integer.

        Raises:
            HerringError: It is none.
        """
        try:
            return int(self.payload)
        except ValueError:
            raise HerringError("the other side of ssh sent what is no number") from None


class Inbox:
    """Makes frames of bytes."""

    def __init__(self, greeting: bytes = b"") -> None:
        """Creates it.

        Args:
            greeting: What comes before the first frame, behind anything else.
        """
        self._greeting = greeting
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that are complete with `data`.

        Raises:
            HerringError: This is no agent's language.
        """
        self._data += data
        if self._greeting:
            at = self._data.find(self._greeting)
            if at < 0 and _OTHER_GREETING.search(self._data):
                raise HerringError("its Herring is of another version: install the same as here")
            if at < 0:
                if len(self._data) > _MAXIMUM_NOISE:
                    raise HerringError("what ssh started there is no agent of herring run")
                return
            del self._data[: at + len(self._greeting)]
            self._greeting = b""
        while len(self._data) >= _HEADER.size:
            kind_, number, length = _HEADER.unpack_from(self._data)
            if length > _MAXIMUM_PAYLOAD:
                raise HerringError(f"a message of {length} bytes through ssh is too long")
            end = _HEADER.size + length
            if len(self._data) < end:
                return
            frame = Frame(kind_, number, bytes(self._data[_HEADER.size : end]))
            del self._data[:end]
            yield frame


class Outbox:
    """Sends frames without ever waiting: what the other side does not take yet is kept."""

    def __init__(self, fd: int, selector: selectors.BaseSelector) -> None:
        """Creates it.

        Args:
            fd: A pipe or socket; the outbox closes it.
            selector: Tells when there is room again, with this object as data: call `flush` then.
        """
        self._fd = fd
        self._selector = selector
        self._data = bytearray()
        self._registered = False
        os.set_blocking(fd, False)

    @property
    def pending(self) -> int:
        """Bytes that are kept."""
        return len(self._data)

    @property
    def open(self) -> bool:
        """Whether there is another side."""
        return self._fd >= 0

    def greet(self) -> None:
        """Sends `GREETING`."""
        self._data += GREETING
        self.flush()

    def send(self, kind_: int, number: int = 0, payload: object = b"") -> None:
        """Sends a frame.

        Args:
            kind_: Of `kind`.
            number: Which process it is about.
            payload: Bytes, an integer, text, or a dictionary for JSON.
        """
        if self._fd < 0:
            return
        if isinstance(payload, dict):
            payload = json.dumps(payload)
        if not isinstance(payload, bytes):
            payload = str(payload).encode()
        self._data += _HEADER.pack(kind_, number, len(payload)) + payload
        self.flush()

    def flush(self) -> None:
        """Sends what the other side takes now."""
        try:
            while self._data and self._fd >= 0:
                del self._data[: os.write(self._fd, self._data[: 1 << 16])]
        except BlockingIOError:
            pass
        except OSError:  # nobody is there any more; whoever reads from there sees it too
            self.close()
            return
        waits = bool(self._data) and self._fd >= 0
        if waits and not self._registered:
            self._selector.register(self._fd, selectors.EVENT_WRITE, self)
        elif self._registered and not waits:
            self._selector.unregister(self._fd)
        self._registered = waits

    def close(self) -> None:
        """The other side sees the end. Harmless to repeat."""
        if self._registered:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(self._fd)
            self._registered = False
        fd, self._fd = self._fd, -1
        self._data.clear()
        if fd >= 0:
            os.close(fd)
