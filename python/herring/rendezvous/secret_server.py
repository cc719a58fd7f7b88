"""Gives ranks rank 0's address and the job's secret over a network, without a file.

Rank 0 has a *secret server*, which listens on a port. A process that names the job in a MUNGE
credential gets the answer in another credential. Credentials are encrypted under the cluster's key,
and only processes of the same user on hosts of the cluster can open them. Others get nothing, not
even an answer on which they could try guesses, and cannot pretend to be rank 0.

    asks:     CREDENTIAL{"herring": "ask", "job": JOB, "nonce": N}
    answer:   CREDENTIAL{"herring": "answer", "job": JOB, "nonce": N,
                         "address": HOST:PORT, "secret": S, "size": W}

Each credential is on a line of its own. An answer says that it is an answer, so a question that is
sent back is not taken for one. The server is closed once all ranks have registered.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import time
from collections.abc import Callable, Mapping

from herring.base.units import in_seconds
from herring.errors import ConfigurationError, TimeoutError
from herring.rendezvous.door import Door
from herring.rendezvous.munge import MungeError
from herring.rendezvous.publication import Wait

_LINE_BYTES = 8192
_GUEST_SECONDS = 5.0
_POLL_SECONDS = 0.05
_MOST_POLL_SECONDS = 1.0

Codec = Callable[[bytes], bytes]  # encode or decode of `herring.rendezvous.munge`, with the socket


class SecretServer:
    """Answers processes that ask for the job, until `close`."""

    def __init__(
        self,
        listener: socket.socket,
        keys: tuple[str, ...],
        content: Mapping[str, str],
        encode: Codec,
        decode: Codec,
    ) -> None:
        """Starts to listen for questions.

        Args:
            listener: A socket that listens already; the server closes it.
            keys: The names under which the job may be asked for.
            encode: Makes a credential that only this user can open.
            decode: Opens a credential; raises MungeError if it is not this user's.
        """
        self._keys = keys
        self._content = dict(content)
        self._encode = encode
        self._decode = decode
        self._closed = False
        self._door = Door([listener], self._hear, "the secret server of rank 0")

    def close(self) -> None:
        """Stops listening: nobody gets anything any more. Harmless to repeat, and after a fork."""
        self._closed = True
        self._door.close()

    def _hear(self, guest: socket.socket, admit: Callable[[], None]) -> bool:
        with contextlib.suppress(OSError, MungeError, ConfigurationError):
            line = _receive(guest, time.monotonic() + _GUEST_SECONDS)
            if line.endswith(b"\n"):
                asked = _parse(self._decode(line.strip()))
                admit()  # it is a process of this user
                if not self._closed:
                    guest.send(self._answer(asked))
        return False

    def _answer(self, asked: Mapping[str, str]) -> bytes:
        job, nonce = asked.get("job"), asked.get("nonce")
        if asked.get("herring") != "ask" or job not in self._keys or not nonce:
            return b""
        answer = {**self._content, "herring": "answer", "job": job, "nonce": nonce}
        return self._encode(json.dumps(answer).encode()) + b"\n"


def ask(host: str, port: int, key: str, wait: Wait, encode: Codec, decode: Codec) -> dict[str, str]:
    """Asks rank 0's secret server until it answers.

    Args:
        host: An address literal.
        encode: Makes a credential that only this user can open.
        decode: Opens a credential; raises MungeError if it is not this user's.

    Returns:
        The content that was given to the server.

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
        return _receive(connection, deadline).strip()


def _receive(connection: socket.socket, deadline: float) -> bytes:
    """Returns a line, or what came before the end, the limit of its length, or the deadline."""
    line = b""
    while not line.endswith(b"\n") and len(line) <= _LINE_BYTES:
        connection.settimeout(max(deadline - time.monotonic(), 0.01))
        data = connection.recv(_LINE_BYTES)
        if not data:
            break
        line += data
    return line


def _parse(payload: bytes) -> dict[str, str]:
    """Returns the content of a credential that this module made; otherwise an empty dictionary."""
    try:
        content = json.loads(payload)
    except ValueError:
        return {}
    if not isinstance(content, dict):
        return {}
    return {name: value for name, value in content.items() if isinstance(value, str)}
