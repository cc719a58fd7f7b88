"""Tells the launcher which workers have joined the job.

A worker that has joined sends one datagram to a socket in Linux's abstract namespace, whose name
contains the job's name. The socket needs no file and no descriptor that a shell in between might
close, and nobody waits. A worker that cannot be heard, because its container has a network of its
own, counts as not joined.
"""

from __future__ import annotations

import contextlib
import re
import socket

#: The prefix of job names that `herring run` makes up.
JOB_PREFIX = "run-"


class JoinNotices:
    """The receiving end, in the launcher or in an agent."""

    def __init__(self, job: str) -> None:
        # Becomes readable when a worker has joined. None if another process of the job, which is
        # told instead, listens on this host.
        self.socket: socket.socket | None = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.setblocking(False)
        try:
            self.socket.bind(_name(job))
        except OSError:
            self.close()

    def ranks(self) -> list[int]:
        """Returns the ranks that have joined since the last call."""
        found = []
        with contextlib.suppress(OSError):
            while self.socket is not None:
                data = self.socket.recv(64)
                if re.fullmatch(rb"\d{1,7}", data):
                    found.append(int(data))
        return found

    def close(self) -> None:
        """Closes the socket. Harmless to repeat."""
        if self.socket is not None:
            self.socket.close()
        self.socket = None


def tell(job: str, rank: int) -> None:
    """Tells the launcher that a worker has joined; does nothing without a launcher."""
    if not job.startswith(JOB_PREFIX):
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.setblocking(False)
        channel.sendto(str(rank).encode(), _name(job))


def _name(job: str) -> bytes:
    return b"\0herring/" + job.encode()
