"""What tests on emulated hosts share: whether there can be any here, and what they leave."""

from __future__ import annotations

import os
import pathlib
import shutil
from typing import Any

import pytest

from herring_lab.emulate import Cluster, ClusterError

__all__ = ["namespaces", "needs_hosts", "why_no_hosts"]


def why_no_hosts(**network: Any) -> str | None:
    """Returns why this machine makes no such host; None: it does."""
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
    """Skips a test where there can be no such hosts."""
    reason = why_no_hosts(**network)
    return pytest.mark.skipif(reason is not None, reason=str(reason))


def namespaces(identity: str = "") -> set[str]:
    """Returns the names of the network namespaces of a cluster, or of all."""
    return {path.name for path in pathlib.Path("/run/netns").glob(f"herring-{identity}*")}
