"""Gives ranks rank 0's address and the job's secret over a network, without a file.

Rank 0 opens a *gate*, a listening port. A process that names the job in a MUNGE credential gets the
answer in another credential. Credentials are encrypted under the cluster's key, and only processes
of the same user on hosts of the cluster can open them. Others get nothing, not even an answer on
which they could try guesses, and cannot pretend to be rank 0.

    asks:     CREDENTIAL{"herring": "ask", "job": JOB, "nonce": N}
    answer:   CREDENTIAL{"herring": "answer", "job": JOB, "nonce": N,
                         "address": HOST:PORT, "secret": S, "size": W}

Each credential is on a line of its own. An answer says that it is an answer, so a question that is
sent back is not taken for one. The gate is closed once all ranks have registered.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping

from herring.base.units import in_seconds
from herring.errors import ConfigurationError, TimeoutError
from herring.rendezvous.munge import MungeError
from herring.rendezvous.publication import Wait

_LINE_BYTES = 8192
_GUESTS = 256  # connections that have not asked yet; the others wait in the system's queue
_GUEST_SECONDS = 5.0
# Seconds that every connection has, even if more connections want a place. A member asks as soon as
# it is connected; a member that was dropped because it is slow connects again.
_FAIR_SECONDS = 0.1
_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_POLL_SECONDS = 0.05
_MOST_POLL_SECONDS = 1.0

Codec = Callable[[bytes], bytes]  # encode or decode of `herring.rendezvous.munge`, with the socket


class Gate:
    """Answers processes that ask for the job, until `close`."""

    def __init__(
        self,
        listener: socket.socket,
        keys: tuple[str, ...],
        content: Mapping[str, str],
        encode: Codec,
        decode: Codec,
    ) -> None:
        """Opens the gate.

        Args:
            listener: A socket that listens already; the gate closes it.
            keys: The names under which the job may be asked for.
            content: What a process that asks gets.
            encode: Makes a credential that only this user can open.
            decode: Opens a credential; raises MungeError if it is not this user's.
        """
        self._listener = listener
        self._keys = keys
        self._content = dict(content)
        self._encode = encode
        self._decode = decode
        self._guests: dict[socket.socket, _Guest] = {}  # the oldest guest comes first
        self._paused_until = 0.0  # set while there is no place, or no descriptor, for another guest
        self._owner = os.getpid()
        self._read, self._write = os.pipe()
        listener.setblocking(False)
        self._thread = threading.Thread(target=self._serve, name="herring-gate", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Shuts the gate; nobody gets anything afterwards. Harmless to repeat, and after a fork."""
        write, self._write = self._write, -1
        if write < 0:
            return
        if os.getpid() == self._owner:
            os.write(write, b"\0")  # closing says nothing while a child has a copy
            os.close(write)
            self._thread.join()
            return
        os.close(write)
        # The thread does not exist in the child, but its descriptors do.
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
        ends = [self._since(guest) + _GUEST_SECONDS for guest in self._oldest()]
        if self._paused_until:
            ends.append(self._paused_until)
        left = max(min(ends) - time.monotonic(), 0.0) if ends else None
        for key, _ in selector.select(left):
            if key.fileobj == self._read:
                return False
            if key.fileobj is self._listener:
                self._admit(selector)
            elif isinstance(key.fileobj, socket.socket) and key.fileobj in self._guests:
                self._hear(selector, key.fileobj)  # else it has just made room for another guest
        now = time.monotonic()
        while any(self._since(guest) + _GUEST_SECONDS <= now for guest in self._oldest()):
            self._part(selector, *self._oldest())
        if self._paused_until and self._paused_until <= now:
            self._resume(selector)
        return True

    def _since(self, guest: socket.socket) -> float:
        return self._guests[guest].since

    def _oldest(self) -> list[socket.socket]:
        """Returns a list of the guest that came first, or an empty list."""
        return list(itertools.islice(self._guests, 1))

    def _admit(self, selector: selectors.BaseSelector) -> None:
        wait = self._drop_one(selector) if len(self._guests) >= _GUESTS else 0.0
        try:
            if wait <= 0:
                guest, _ = self._listener.accept()
        except OSError as error:
            if error.errno not in _OUT_OF_RESOURCES:
                return
            wait = self._drop_one(selector)  # its descriptor is for the next guest
            if wait <= 0:
                return
        if wait > 0:
            # A connection in the system's queue would wake this thread again and again.
            selector.unregister(self._listener)
            self._paused_until = time.monotonic() + wait
            return
        guest.setblocking(False)
        self._guests[guest] = _Guest()
        selector.register(guest, selectors.EVENT_READ)

    def _drop_one(self, selector: selectors.BaseSelector) -> float:
        """Drops the oldest guest, or returns for how many seconds that guest may still stay."""
        for guest in self._oldest():
            left = self._since(guest) + _FAIR_SECONDS - time.monotonic()
            if left > 0:
                return left
            self._hear(selector, guest)  # the guest may have asked meanwhile
            if guest in self._guests:
                self._part(selector, guest)
            return 0.0
        return _FAIR_SECONDS

    def _resume(self, selector: selectors.BaseSelector) -> None:
        if self._paused_until:
            self._paused_until = 0.0
            selector.register(self._listener, selectors.EVENT_READ)

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
                # The answer is one small line, which fits into the socket's buffer.
                guest.send(self._answer(about.line.strip()))
        self._part(selector, guest)

    def _answer(self, line: bytes) -> bytes:
        asked = _parse(self._decode(line))
        job, nonce = asked.get("job"), asked.get("nonce")
        if asked.get("herring") != "ask" or job not in self._keys or not nonce:
            return b""
        answer = {**self._content, "herring": "answer", "job": job, "nonce": nonce}
        return self._encode(json.dumps(answer).encode()) + b"\n"

    def _part(self, selector: selectors.BaseSelector, guest: socket.socket) -> None:
        del self._guests[guest]
        selector.unregister(guest)
        guest.close()
        self._resume(selector)


class _Guest:
    """A connection that has not asked yet: the bytes received so far, and when it was made."""

    def __init__(self) -> None:
        self.line = b""
        self.since = time.monotonic()


def ask(host: str, port: int, key: str, wait: Wait, encode: Codec, decode: Codec) -> dict[str, str]:
    """Asks rank 0's gate until it answers.

    Args:
        host: An address literal.
        port: The gate's port.
        key: The name under which the job is asked for.
        wait: Who asks, and how long.
        encode: Makes a credential that only this user can open.
        decode: Opens a credential; raises MungeError if it is not this user's.

    Returns:
        The content that was given to the gate.

    Raises:
        ConfigurationError: MUNGE is missing here.
        TimeoutError: This user's rank 0 of this job did not answer in time.
    """
    pause, reason = _POLL_SECONDS, ""
    while True:
        nonce = secrets.token_hex(16)
        asked = {"herring": "ask", "job": key, "nonce": nonce}
        question = encode(json.dumps(asked).encode())
        try:
            line = _exchange(host, port, question, min(wait.left(), _GUEST_SECONDS))
            answer = _parse(decode(line)) if line else {}
            about = (answer.get("herring"), answer.get("job"), answer.get("nonce"))
            if about == ("answer", key, nonce):
                return answer
            reason = "the process that listens there has no answer for this job"
        except OSError as error:
            reason = f"{error.strerror or error}"
        except MungeError as error:
            reason = f"the process that listens there is not this user's: {error}"
        if not wait.goes_on(f"answer at {host}:{port} ({reason})"):
            raise TimeoutError(
                f"{wait.who} has waited {in_seconds(wait.timeout)} (HERRING_CONNECT_TIMEOUT) for "
                f"rank 0 to answer at {host}:{port} ({reason}): has it started, with the same "
                "HERRING_JOB and HERRING_SERVERS? If it runs elsewhere, set "
                "HERRING_RENDEZVOUS=HOST:PORT for all of them"
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
    """Returns the content of a credential that this module made; otherwise an empty dictionary."""
    try:
        content = json.loads(payload)
    except ValueError:
        return {}
    if not isinstance(content, dict):
        return {}
    return {name: value for name, value in content.items() if isinstance(value, str)}
