"""Identifies the host on which a process runs."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path

from herring.rendezvous.settings import value_of


def host_identity(environ: Mapping[str, str] = os.environ) -> str:
    """Returns a text that identifies this host: boot id, host name and network namespace.

    ``HERRING_HOST_ID`` overrides it. Workers with the same identity form a node.
    """
    if given := value_of(environ, "HERRING_HOST_ID"):
        return str(given)
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = "unknown"
    try:
        namespace = os.readlink("/proc/self/ns/net")
    except OSError:
        namespace = "net"
    return f"{boot}/{socket.gethostname()}/{namespace}"
