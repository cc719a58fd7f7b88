"""What has to be installed besides herring-dl for a part of it, and the command that does so."""

from __future__ import annotations

import re
import shlex

__all__ = ["LAB", "install_command", "missing_part"]

#: The package of the distribution herring-dl-lab.
LAB = "herring_lab"

# Herring is in no index yet: these run in a copy of its repository.
_COPY = "in a copy of Herring's repository"


def missing_part(error: ModuleNotFoundError) -> str:
    """Says what to install if a part of the lab is what could not be imported; else empty."""
    name = error.name or ""
    if name.partition(".")[0] != LAB:
        return ""
    return f"Herring's laboratory is not installed: pip install ./lab {_COPY}"


def install_command(extra: str) -> str:
    """The command that installs what an optional part needs, for a message.

    It names the packages of the extra, not the extra: that holds wherever Herring came from.

    Args:
        extra: One of the extras of pyproject.toml, as ``torch``.

    Returns:
        As in ``pip install 'torch>=2.1'``.
    """
    from importlib import metadata

    try:
        listed = metadata.requires("herring-dl") or []
    except metadata.PackageNotFoundError:
        return f"pip install '.[{extra}]' {_COPY}"
    marked = re.compile(rf"""(.*?)\s*;\s*extra\s*==\s*["']{extra}["']""")
    found = [match[1] for match in map(marked.fullmatch, listed) if match]
    return "pip install " + " ".join(map(shlex.quote, found))
