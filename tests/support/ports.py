"""Ports that nobody else gets while a test needs them."""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Iterator
from pathlib import Path


def held(host: str = "127.0.0.1") -> socket.socket:
    """Returns a socket that holds a port until it is closed.

    It is bound with SO_REUSEADDR but does not listen, so the system gives the port to nobody else,
    and who asks for this very port may listen on it.
    """
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind((host, 0))
    return holder


def port_of(holder: socket.socket) -> int:
    return holder.getsockname()[1]


@contextlib.contextmanager
def block(count: int) -> Iterator[range]:
    """Yields up to 50 ports in a row that are free, and that no other test gets meanwhile.

    They are below those that the system gives to whoever asks for any port: other processes have
    some of those at any time.
    """
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for _ in range(1000):
        first = random.randrange(10_000, lowest - 50, 50)
        with socket.socket(socket.AF_UNIX) as lock:
            try:
                lock.bind(f"\0herring-test-ports-{first}")
                for port in range(first, first + count):
                    with socket.socket() as probe:
                        probe.bind(("", port))
            except OSError:  # Another test has it, or a port is in use.
                continue
            yield range(first, first + count)
            return
    raise RuntimeError(f"found no {count} free ports in a row")
