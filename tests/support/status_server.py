"""Serves a status as rank 0 of a job does, for tests of those who ask for it."""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from herring.observe.client import proof
from herring.observe.metrics import prometheus
from herring.observe.schema import parse


@contextlib.contextmanager
def short_folder() -> Iterator[Path]:
    """Gives a folder whose path is short enough for sockets, with mode 0700."""
    with tempfile.TemporaryDirectory(prefix="hs-", dir="/tmp") as folder:
        yield Path(folder)


class StatusServer:
    """A job's end of the protocol, at a Unix socket or at a port of this machine.

    Args:
      status: The status that is served; assign `status` to change it.
      path: The socket; None means a port of 127.0.0.1, which is then `port`.
      secret: If it is given, a client must prove that it knows it.
      answers: Answers to other commands than ``json``, ``metrics`` and GET requests.
      silent: Whether requests are read and never answered.
      port: A port of 127.0.0.1 instead of any.
      dropped: How many connections are closed without an answer first.
    """

    def __init__(
        self,
        status: Mapping[str, Any],
        path: Path | None = None,
        secret: bytes = b"",
        answers: Mapping[str, str] | None = None,
        silent: bool = False,
        port: int = 0,
        dropped: int = 0,
    ) -> None:
        self.status = status
        self._dropped = dropped
        self.asked: list[str] = []
        self._secret, self._answers, self._silent = secret, answers or {}, silent
        self._path = path
        if path is None:
            self._listener = socket.create_server(("127.0.0.1", port))
            self.port = self._listener.getsockname()[1]
            self.where = f"127.0.0.1:{self.port}"
        else:
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind(str(path))
            self._listener.listen(8)
            self.where = str(path)
        self._kept: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> StatusServer:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the server and removes its socket, as a job that ends does."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        for connection in self._kept:
            connection.close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            connection.settimeout(10)
            if self._dropped > 0:
                self._dropped -= 1
                connection.close()
                continue
            with contextlib.suppress(OSError):
                self._answer(connection)
            if self._silent:
                self._kept.append(connection)
            else:
                connection.close()

    def _answer(self, connection: socket.socket) -> None:
        with connection.makefile("rwb") as stream:
            command = stream.readline().decode().strip()
            if not command:  # somebody looks whether a job listens here
                return
            self.asked.append(command)
            if self._silent:
                return
            get = command.startswith("GET ")
            if self._secret and not get:
                nonce = secrets.token_bytes(32)
                stream.write(f"prove {nonce.hex()}\n".encode())
                stream.flush()
                expected = f"proof {proof(self._secret, command, nonce)}\n".encode()
                if stream.readline() != expected:
                    stream.write(b"error: the job's secret differs\n")
                    return
            if get:
                while stream.readline().strip():
                    pass
                body = self._body({"/metrics": "metrics"}.get(command.split()[1], "json"))
                head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body.encode())}\r\n"
                kind = "Content-Type: text/plain; version=0.0.4\r\nConnection: close\r\n\r\n"
                stream.write((head + kind + body).encode())
            else:
                stream.write(self._body(command).encode())

    def _body(self, command: str) -> str:
        text = json.dumps(self.status)
        if command in self._answers:
            return self._answers[command]
        if command == "json":
            return text + "\n"
        if command == "metrics":
            return prometheus(parse(text, "the test"))
        return f"error: there is no command {command!r}\n"
