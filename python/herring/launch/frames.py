"""The protocol of `herring run` and its agent on another host, through ssh.

The agent begins with `GREETING`; what a login shell prints before it is ignored. Both sides then
send frames: kind, number of the process (0 if there is none), length, payload. JSON is UTF-8.

From `herring run`:
    JOB: {"folder", "environment", "command", "horovod", "workers", "grace"}
    LISTEN: {"interface"}; only to the host of rank 0
    START: {"name", "worker", "listener", "environment"} of the process with this number
    SIGNAL: the number of a signal in decimal, for the process with this number
From the agent:
    READY: {"client"}: the address from which ssh connected, or empty
    LISTENING: {"rendezvous", "store_port"}: the address, HOST:PORT, and a port that is kept free
    STARTED: the process id in decimal
    OUTPUT, ERRORS: bytes that the process wrote to standard output or standard error
    SHORTAGE: the end of a sentence: why the process that ends next was killed
    ENDED: the return code of Popen, in decimal
    JOINED: no payload; the rank with this number has called herring.init()
    FAILED: {"message", "status"}: the agent ends, and with it all of the job on its host;
        with "process", only this one could not be started
    BEAT: no payload; shows that the network works. A broken connection ends with the first one that
        TCP cannot deliver

When its input ends, the agent ends every process that it started.
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

GREETING = b"herring-remote 2\n"
_OTHER_GREETING = re.compile(rb"herring-remote \d+\n")
_HEADER = struct.Struct(">BII")
_MAXIMUM_PAYLOAD = 1 << 24
_MAXIMUM_NOISE = 1 << 20


class kind:  # noqa: N801
    """Kinds of frames."""

    JOB, LISTEN, START, SIGNAL = 1, 2, 3, 4
    READY, LISTENING, STARTED, OUTPUT, ERRORS, ENDED, FAILED, BEAT = 65, 66, 67, 68, 69, 70, 71, 72
    JOINED, SHORTAGE = 73, 74


class Frame:
    """One message."""

    def __init__(self, kind_: int, number: int, payload: bytes) -> None:
        self.kind = kind_  # one of `kind`
        self.number = number  # the process that the message is about
        self.payload = payload  # the content, as bytes

    def content(self) -> dict[str, Any]:
        """Returns the payload; raises HerringError if it is not a JSON object."""
        try:
            content = json.loads(self.payload)
        except ValueError:
            content = None
        if not isinstance(content, dict):
            raise HerringError("the other side of ssh sent something that is not a JSON object")
        return content

    def integer(self) -> int:
        """Returns the payload; raises HerringError if it is not an integer."""
        try:
            return int(self.payload)
        except ValueError:
            raise HerringError("the other side of ssh sent text that is not a number") from None


class Inbox:
    """Splits a stream of bytes into frames."""

    def __init__(self, greeting: bytes = b"") -> None:
        """Creates an empty inbox; frames begin after the greeting, and anything may precede it."""
        self._greeting = greeting
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yields the frames that `data` completes; HerringError if they are of another version."""
        self._data += data
        if self._greeting:
            at = self._data.find(self._greeting)
            if at < 0 and _OTHER_GREETING.search(self._data):
                raise HerringError("its Herring has another version: install the same one as here")
            if at < 0:
                if len(self._data) > _MAXIMUM_NOISE:
                    raise HerringError("ssh started something that is not an agent of herring run")
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
    """Sends frames without ever waiting; keeps what the other side does not take yet."""

    def __init__(self, fd: int, selector: selectors.BaseSelector) -> None:
        """Creates an empty outbox.

        Args:
            fd: A pipe or socket, which the outbox owns.
            selector: Tells, with this object as data, when there is room again; the caller then
                calls `flush`.
        """
        self._fd = fd
        self._selector = selector
        self._data = bytearray()
        self._registered = False
        os.set_blocking(fd, False)

    @property
    def pending(self) -> int:
        """The number of bytes that are kept."""
        return len(self._data)

    @property
    def open(self) -> bool:
        """Whether the other side can still be reached."""
        return self._fd >= 0

    def greet(self) -> None:
        """Sends `GREETING`."""
        self._data += GREETING
        self.flush()

    def send(self, kind_: int, number: int = 0, payload: object = b"") -> None:
        """Sends a frame.

        Args:
            kind_: One of `kind`.
            number: The process that the message is about.
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
        """Sends as much as the other side takes now."""
        try:
            while self._data and self._fd >= 0:
                del self._data[: os.write(self._fd, self._data[: 1 << 16])]
        except BlockingIOError:
            pass
        except OSError:  # the other side is gone; the reader of its output notices too
            self.close()
            return
        waits = bool(self._data) and self._fd >= 0
        if waits and not self._registered:
            self._selector.register(self._fd, selectors.EVENT_WRITE, self)
        elif self._registered and not waits:
            self._selector.unregister(self._fd)
        self._registered = waits

    def close(self) -> None:
        """Closes the descriptor, so that the other side sees the end; may be repeated."""
        if self._registered:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(self._fd)
            self._registered = False
        fd, self._fd = self._fd, -1
        self._data.clear()
        if fd >= 0:
            os.close(fd)
