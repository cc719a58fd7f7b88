"""Helpers for tests on emulated hosts: whether this machine can create them, what they leave."""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import shutil
from typing import Any

import pytest

from herring_lab.emulate import Cluster, ClusterError
from herring_lab.emulate.namespaces import LOCK_DIRECTORY

__all__ = ["namespaces", "namespaces_of", "needs_hosts", "why_no_hosts"]


@functools.cache
def why_no_hosts(**network: Any) -> str | None:
    """Returns why this machine cannot create emulated hosts, or None if it can.

    It creates one to find out, which takes a second.
    """
    if os.geteuid() != 0:
        return "needs root"
    for tool in ("ip", "tc", "nsenter", "setpriv"):
        if shutil.which(tool) is None:
            return f"needs {tool}"
    if network.get("strict") and not pathlib.Path("/dev/net/tun").exists():
        return "needs /dev/net/tun"
    try:
        with Cluster(1, **network):
            return None
    except ClusterError as error:
        return f"this machine refuses: {error}"


def needs_hosts(**network: Any) -> pytest.MarkDecorator:
    """Skips a test on machines that cannot create emulated hosts; see conftest.py of the root."""
    return pytest.mark.needs_hosts(**network)


def namespaces(identity: str = "") -> set[str]:
    """Returns the names of the network namespaces of one cluster, or of all clusters."""
    return {path.name for path in pathlib.Path("/run/netns").glob(f"herring-{identity}*")}


def namespaces_of(process: int) -> set[str]:
    """Returns the names of the network namespaces of a process's clusters.

    Tests that run at the same time have clusters of their own.
    """
    made = set()
    for descriptor in pathlib.Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it may be closed meanwhile
            target = pathlib.Path(os.readlink(descriptor))
            if target.parent == LOCK_DIRECTORY:
                made |= namespaces(target.name)
    return made
