"""The version that is installed."""

from __future__ import annotations

__all__ = ["version"]


def version() -> str:
    """The installed version, or that of a source tree."""
    from importlib import metadata  # takes longer to import than all that `herring run` needs

    try:
        return metadata.version("herring-dl")
    except metadata.PackageNotFoundError:
        return "0.1.0 (not installed)"
