"""Ports that nobody else gets while a test needs them."""

from __future__ import annotations

import socket


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
