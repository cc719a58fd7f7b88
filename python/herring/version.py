"""The version that is installed."""

from __future__ import annotations

__all__ = ["version"]


def version() -> str:
    """The version that pip shows; it comes from the newest tag when the package is built."""
    from importlib import metadata  # takes longer to import than all that `herring run` needs

    try:
        return metadata.version("herring-dl")
    except metadata.PackageNotFoundError:
        return "unknown (not installed)"
