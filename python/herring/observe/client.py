"""Finds the jobs that run on this machine, and asks a job for its status.

Rank 0 of a job listens at a Unix socket in a folder that only the job's user can enter, and where
HERRING_STATUS names an address, at that address too. A client sends one line with a command
(``json``, ``record`` ...) and reads the answer until the connection ends. An answer that begins
with ``error: `` says why there is none. At an address beyond loopback, the job first answers
``prove NONCE``, with 64 hexadecimal digits. The client then sends ``proof MAC``: the HMAC-SHA256 of
the command and the nonce, with the job's secret as the key.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import re
import socket
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from herring.base import user_folder
from herring.observe.schema import StatusError, clean
from herring.rendezvous.detect import parse_secret
from herring.rendezvous.meet import read_secret_file

_MOST_BYTES = 1 << 28  # a status of 100,000 ranks has 80 MB
_MOST_WORDS = 1000  # characters of an error
_PAUSE = 0.05  # seconds before a job at an address is asked again
_CHALLENGE = re.compile(rb"prove ([0-9a-f]{64})\n")
_CHALLENGE_BYTES = len("prove ") + 64 + 1
_GENERATION = re.compile(r"(?P<job>.+)\.(?P<number>[0-9]{1,9})")
_SOCKET = re.compile(rf"{_GENERATION.pattern}-[0-9]+\.sock")
_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.%\w]+\]|[^:/\[\]\s]+):([0-9]{1,5})")


@dataclass(frozen=True)
class Endpoint:
    """Where a status is read from."""

    name: str  # what the user calls it, for messages
    # The path of a socket, or of a file with a saved status; None means an address.
    path: Path | None = None
    host: str = ""  # host name or address literal
    port: int = 0  # the port of that host


def endpoint(where: str) -> Endpoint:
    """Returns what an existing path or HOST:PORT means; raises StatusError for anything else."""
    path = Path(where)
    match = _ADDRESS.fullmatch(where)
    if "/" not in where and match and not path.exists():
        port = int(match[2])
        if not 0 < port < 65536:
            raise StatusError(f"{where}: {port} is not a port; allowed is 1 to 65535")
        return Endpoint(where, None, match[1].strip("[]"), port)
    try:
        mode = path.stat().st_mode
    except PermissionError:
        raise StatusError(_not_permitted(where)) from None
    except OSError:
        what = "is neither the socket of a job nor HOST:PORT"
        if where.endswith(".sock"):
            what = "is not there: its job has ended"
        raise StatusError(
            f"{where} {what}; 'herring status' shows the jobs of this machine, and --job NAME "
            "finds one by its name"
        ) from None
    if not stat.S_ISSOCK(mode) and not stat.S_ISREG(mode):
        raise StatusError(f"{where} is neither a socket nor a file with a saved status")
    return Endpoint(where, path)


def find(environ: Mapping[str, str] = os.environ) -> tuple[list[Path], list[str]]:
    """Returns the sockets of this user's jobs on this machine, and what was skipped and why.

    The sockets of jobs that have ended without removing them are skipped.
    """
    found: list[Path] = []
    skipped: list[str] = []
    for folder in user_folder.candidates(environ):
        try:
            private = user_folder.is_private(folder)
        except OSError:
            continue  # no job has made it
        if not private:
            skipped.append(
                f"{folder}: not a folder of this user with mode 0700, so others may have put "
                "sockets there"
            )
            continue
        for path in sorted(folder.glob("*.sock")):
            try:
                _require_listening(path)
            except ConnectionRefusedError:
                skipped.append(f"{path}: its job is gone")
                continue
            except FileNotFoundError:
                continue  # it has ended meanwhile
            found.append(path)
    return found, skipped


def is_elastic(path: Path) -> bool:
    """Returns whether a socket's name has the number of a generation: ``JOB.3-PID.sock``."""
    return _SOCKET.fullmatch(path.name) is not None


def elastic_job(name: str) -> str | None:
    """Returns the elastic job of a generation such as ``JOB.3``; None if the name has no number."""
    match = _GENERATION.fullmatch(name)
    return match["job"] if match else None


def next_generation(path: Path) -> Path | None:
    """Returns the socket of the job's latest generation here, or None if none follows this one."""
    own = _SOCKET.fullmatch(path.name)
    if own is None:
        return None
    found: list[tuple[int, Path]] = []
    for each in path.parent.glob("*.sock"):
        other = _SOCKET.fullmatch(each.name)
        if other and other["job"] == own["job"] and int(other["number"]) > int(own["number"]):
            found.append((int(other["number"]), each))
    for _, each in sorted(found, reverse=True):
        with contextlib.suppress(ConnectionRefusedError, FileNotFoundError):
            _require_listening(each)
            return each
    return None


def _require_listening(path: Path) -> None:
    """Raises ConnectionRefusedError or FileNotFoundError if no job listens at a socket."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(1)
        try:
            connection.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            raise
        except OSError:
            pass  # a job that is too busy now still is a job


def ask(where: Endpoint, command: str, timeout: float) -> str:
    """Returns what a job answers to a command.

    Args:
        where: The job, or a file with a saved status, which answers ``json`` only.
        command: ``json``, ``status``, ``metrics`` or ``record``.
        timeout: Seconds within which the whole answer must be here.

    Raises:
        StatusError: There is no answer.
    """
    name = where.name
    try:
        if where.path is not None and where.path.is_file():
            if command != "json":
                raise StatusError(f"{name} is a saved status, and no job that could do '{command}'")
            if where.path.stat().st_size > _MOST_BYTES:
                raise StatusError(f"{name} is too large for a saved status")
            return _text(where.path.read_bytes(), name)
        answer = _answer(where, command, time.monotonic() + timeout)
    except TimeoutError:
        raise StatusError(
            f"{name} has not answered in {timeout:g} s: the process of rank 0 may be stopped, or "
            "its machine too busy; --timeout 60s waits longer"
        ) from None
    except ConnectionRefusedError:
        if where.path is not None:
            raise StatusError(f"the job of {name} is gone: nobody listens there") from None
        raise StatusError(
            f"nobody listens at {name}: the job has ended, or its HERRING_STATUS is another address"
        ) from None
    except FileNotFoundError:
        raise StatusError(f"the job of {name} is gone") from None
    except PermissionError:
        raise StatusError(_not_permitted(name)) from None
    except (ConnectionResetError, BrokenPipeError):
        raise StatusError(f"{name} ended the connection: the job is about to end") from None
    except socket.gaierror as error:
        raise StatusError(f"{name}: {where.host!r} has no address: {error.strerror}") from None
    except OSError as error:
        raise StatusError(f"{name} cannot be reached: {error.strerror or error}") from None
    text = _text(answer, name)
    if not text:
        raise StatusError(f"{name} ended the connection: the job is about to end")
    if text.startswith("error: "):
        raise StatusError(f"{name}: {clean(text.removeprefix('error: ')).strip()[:_MOST_WORDS]}")
    if command == "record" and clean(text.rstrip("\n")) != text.rstrip("\n"):
        raise StatusError(f"{name} did not answer with the name of a file: it is not a Herring job")
    return text


def proof(secret: bytes, command: str, nonce: bytes) -> str:
    """Returns the hexadecimal proof that a client knows the job's secret."""
    text = b"herring-status-1 " + command.encode() + b"\n" + nonce
    return hmac.digest(secret, text, "sha256").hex()


def token() -> str:
    """Returns what lets Prometheus read the metrics of the job; StatusError without a secret."""
    return hmac.digest(_secret("--token"), b"herring status", "sha256").hex()


def _answer(where: Endpoint, command: str, deadline: float) -> bytes:
    """Returns the answer; asks again if a job at an address ends the connection without one.

    Where strangers crowd in, a client that is slow to prove itself can lose its place.
    """
    ended = False  # whether an attempt ended without an answer
    while True:
        try:
            if (answer := _exchange(where, command, deadline)) or where.path is not None:
                return answer
        except (ConnectionResetError, BrokenPipeError):
            if where.path is not None:
                raise
        except TimeoutError:
            if ended:
                return b""
            raise
        ended = True
        if time.monotonic() + _PAUSE > deadline:
            return b""
        time.sleep(_PAUSE)


def _exchange(where: Endpoint, command: str, deadline: float) -> bytes:
    with _connect(where, deadline) as connection:
        _within(connection, deadline)
        connection.sendall(f"{command}\n".encode())
        answer = bytearray()
        while more := _receive(connection, deadline):
            answer += more
            if len(answer) > _MOST_BYTES:
                raise StatusError(f"{where.name} does not end its answer: it is not a Herring job")
            challenge = len(answer) == _CHALLENGE_BYTES and _CHALLENGE.fullmatch(answer)
            if challenge:
                nonce = bytes.fromhex(challenge[1].decode())
                words = proof(_secret(where.name), command, nonce)
                connection.sendall(f"proof {words}\n".encode())
                answer.clear()
        return bytes(answer)


def _connect(where: Endpoint, deadline: float) -> socket.socket:
    if where.path is None:
        left = max(deadline - time.monotonic(), 0.001)
        return socket.create_connection((where.host, where.port), left)
    connection = socket.socket(socket.AF_UNIX)
    try:
        while True:
            _within(connection, deadline)
            try:
                connection.connect(str(where.path))
                return connection
            except BlockingIOError:  # too many others wait there
                time.sleep(0.02)
    except BaseException:
        connection.close()
        raise


def _receive(connection: socket.socket, deadline: float) -> bytes:
    _within(connection, deadline)
    return connection.recv(1 << 18)


def _within(connection: socket.socket, deadline: float) -> None:
    """Lets the next call on the connection last no longer than the deadline."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    connection.settimeout(left)


def _secret(name: str) -> bytes:
    if path := os.environ.get("HERRING_SECRET_FILE", "").strip():
        return read_secret_file(path)
    if text := os.environ.get("HERRING_SECRET", "").strip():
        return parse_secret(text)
    raise StatusError(
        f"{name} asks for the job's secret: set HERRING_SECRET_FILE to the file that the job has"
    )


def _text(answer: bytes, name: str) -> str:
    try:
        return answer.decode()
    except UnicodeDecodeError:
        raise StatusError(f"{name} did not answer with text: it is not a Herring job") from None


def _not_permitted(name: str) -> str:
    return f"{name}: permission denied; only the user whose job it is can ask for its status"
