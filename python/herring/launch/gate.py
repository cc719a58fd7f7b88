"""How ranks get rank 0's address and the job's secret over a network, without a file.

Rank 0 opens a *gate*: a port where whoever can name the job by a credential of MUNGE gets the
answer by another. Both are encrypted under the cluster's key and open for processes of the same
user only, on hosts of the cluster. Nobody else gets anything, not even an answer to try guesses on;
and nobody else can pass for rank 0.

    asks:     CREDENTIAL{"ask": JOB, "nonce": N}
    answer:   CREDENTIAL{"nonce": N, "address": HOST:PORT, "secret": S, "size": W}

each on a line of its own. The gate is closed once all are there.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping

from herring.errors import ConfigurationError, TimeoutError
from herring.launch.munge import MungeError
from herring.launch.publication import Wait

__all__ = ["Gate", "ask"]

_LINE_BYTES = 8192
_GUESTS = 256  # who has not asked yet; the others wait in the system's queue
_GUEST_SECONDS = 5.0
_POLL_SECONDS = 0.05
_MOST_POLL_SECONDS = 1.0

Codec = Callable[[bytes], bytes]  # of `herring.launch.munge`, with the socket that it takes


class Gate:
    """Answers who asks for the job, until `close`."""

    def __init__(
        self,
        listener: socket.socket,
        keys: tuple[str, ...],
        content: Mapping[str, str],
        encode: Codec,
        decode: Codec,
    ) -> None:
        """Opens it.

        Args:
            listener: Listens already; the gate closes it.
            keys: What the job is called by those who ask.
            content: What they get.
            encode: Makes a credential that only this user can open.
            decode: Opens one; raises MungeError if it is none of this user's.
        """
        self._listener = listener
        self._keys = keys
        self._content = dict(content)
        self._encode = encode
        self._decode = decode
        self._guests: dict[socket.socket, _Guest] = {}
        self._owner = os.getpid()
        self._read, self._write = os.pipe()
        listener.setblocking(False)
        self._thread = threading.Thread(target=self._serve, name="herring-gate", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Shuts it; nobody gets anything from then on. Harmless to repeat, and after a fork."""
        write, self._write = self._write, -1
        if write < 0:
            return
        if os.getpid() == self._owner:
            os.write(write, b"\0")  # its end alone says nothing while a child has a copy of it
            os.close(write)
            self._thread.join()
            return
        os.close(write)
        # The thread did not come along; its descriptors did.
        for each in (self._listener, *self._guests):
            each.close()
        os.close(self._read)

    def _serve(self) -> None:
        with selectors.PollSelector() as selector:
            selector.register(self._read, selectors.EVENT_READ)
            selector.register(self._listener, selectors.EVENT_READ)
            try:
                while self._turn(selector):
                    pass
            finally:
                for guest in list(self._guests):
                    self._part(selector, guest)
                self._listener.close()
                os.close(self._read)

    def _turn(self, selector: selectors.BaseSelector) -> bool:
        soonest = min((guest.deadline for guest in self._guests.values()), default=None)
        left = None if soonest is None else max(soonest - time.monotonic(), 0.0)
        for key, _ in selector.select(left):
            if key.fileobj == self._read:
                return False
            if key.fileobj is self._listener:
                self._admit(selector)
            elif isinstance(key.fileobj, socket.socket):
                self._hear(selector, key.fileobj)
        now = time.monotonic()
        for guest in [each for each, about in self._guests.items() if about.deadline <= now]:
            self._part(selector, guest)
        return True

    def _admit(self, selector: selectors.BaseSelector) -> None:
        try:
            guest, _ = self._listener.accept()
        except OSError:
            return
        guest.setblocking(False)
        self._guests[guest] = _Guest()
        selector.register(guest, selectors.EVENT_READ)
        if len(self._guests) >= _GUESTS:
            selector.unregister(self._listener)

    def _hear(self, selector: selectors.BaseSelector, guest: socket.socket) -> None:
        about = self._guests[guest]
        try:
            data = guest.recv(_LINE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        about.line += data
        if data and len(about.line) <= _LINE_BYTES and not about.line.endswith(b"\n"):
            return
        if about.line.endswith(b"\n"):
            with contextlib.suppress(OSError, MungeError, ConfigurationError):
                # One small line, which fits into the socket's buffer.
                guest.send(self._answer(about.line.strip()))
        self._part(selector, guest)

    def _answer(self, line: bytes) -> bytes:
        asked = _parse(self._decode(line))
        if asked.get("ask") not in self._keys:
            return b""
        answer = {**self._content, "nonce": asked.get("nonce", "")}
        return self._encode(json.dumps(answer).encode()) + b"\n"

    def _part(self, selector: selectors.BaseSelector, guest: socket.socket) -> None:
        del self._guests[guest]
        selector.unregister(guest)
        guest.close()
        if self._listener.fileno() not in selector.get_map():
            selector.register(self._listener, selectors.EVENT_READ)


class _Guest:
    """What somebody who has not asked yet has sent, and until when the gate listens."""

    def __init__(self) -> None:
        self.line = b""
        self.deadline = time.monotonic() + _GUEST_SECONDS


def ask(host: str, port: int, key: str, wait: Wait, encode: Codec, decode: Codec) -> dict[str, str]:
    """Asks rank 0's gate until it answers.

    Args:
        host: An address literal.
        port: Of the gate.
        key: What the job is called.
        wait: Who asks, and how long.
        encode: As of `Gate`.
        decode: As of `Gate`.

    Returns:
        What the gate was given.

    Raises:
        ConfigurationError: MUNGE is missing here.
        TimeoutError: Nobody there who is this user's rank 0 of this job.
    """
    pause, reason = _POLL_SECONDS, ""
    while True:
        nonce = secrets.token_hex(16)
        question = encode(json.dumps({"ask": key, "nonce": nonce}).encode())
        try:
            line = _exchange(host, port, question, min(wait.left(), _GUEST_SECONDS))
            answer = _parse(decode(line)) if line else {}
            if answer.get("nonce") == nonce:
                return answer
            reason = "what listens there has no answer for this job"
        except OSError as error:
            reason = f"{error.strerror or error}"
        except MungeError as error:
            reason = f"what listens there is not this user's: {error}"
        if not wait.goes_on(f"answer at {host}:{port}"):
            raise TimeoutError(
                f"{wait.who} has waited {wait.timeout:g} s (HERRING_CONNECT_TIMEOUT) for rank 0 to "
                f"answer at {host}:{port} ({reason}): has it started, with the same HERRING_JOB "
                "and HERRING_SERVERS? If it runs elsewhere, set HERRING_RENDEZVOUS=HOST:PORT for "
                "all of them"
            )
        time.sleep(pause)
        pause = min(pause * 1.5, _MOST_POLL_SECONDS)


def _exchange(host: str, port: int, question: bytes, seconds: float) -> bytes:
    deadline = time.monotonic() + seconds
    with socket.create_connection((host, port), seconds) as connection:
        connection.sendall(question + b"\n")
        line = b""
        while not line.endswith(b"\n") and len(line) <= _LINE_BYTES:
            connection.settimeout(max(deadline - time.monotonic(), 0.01))
            data = connection.recv(_LINE_BYTES)
            if not data:
                break
            line += data
    return line.strip()


def _parse(payload: bytes) -> dict[str, str]:
    """What a credential carries, if it is what this module makes; else nothing."""
    try:
        content = json.loads(payload)
    except ValueError:
        return {}
    if not isinstance(content, dict):
        return {}
    return {name: value for name, value in content.items() if isinstance(value, str)}
