"""The version that is installed."""

from __future__ import annotations

from importlib import metadata

__all__ = ["version"]


def version() -> str:
    """The installed version, or that of a source tree."""
    try:
        return metadata.version("herring-dl")
    except metadata.PackageNotFoundError:
        return "0.1.0 (not installed)"
