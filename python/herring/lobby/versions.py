"""Lets members and the lobby of an elastic job refuse each other if their messages differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from herring.base.version import version

#: Counts the changes of the messages between members and the lobby. Both begin with a message that
#: has it, and whose fields `own` returns never change.
PROTOCOL = 2


def own() -> dict[str, Any]:
    """Returns what the first message of each side says about its version."""
    return {"protocol": PROTOCOL, "herring": version()}


def difference(hello: Mapping[str, Any], theirs: str, ours: str) -> str:
    """Returns how the version of the other side differs, in words; empty if it does not."""
    protocol = hello.get("protocol")
    if protocol == PROTOCOL:
        return ""
    other = f"Herring {str(hello.get('herring'))[:40]}, protocol {str(protocol)[:10]}"
    return (
        f"{theirs} has another version of the lobby's messages ({other}) than {ours} "
        f"(Herring {version()}, protocol {PROTOCOL}): install the same Herring on all hosts"
    )
