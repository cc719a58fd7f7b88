"""What a distribution of its own installs: the lab, its studies, the simulator, bench's peers."""

from __future__ import annotations

__all__ = ["LAB_PARTS", "missing_part"]

#: Modules of the distribution herring-dl-lab.
LAB_PARTS = ("herring.lab", "herring.study", "herring.simulate", "herring.bench.peers")

_INSTALL = "pip install herring-dl-lab (in a copy of the repository: pip install ./lab)"


def missing_part(error: ModuleNotFoundError) -> str:
    """Says what to install if a part of the lab is what could not be imported; else empty."""
    name = error.name or ""
    if not any(name == part or name.startswith(part + ".") for part in LAB_PARTS):
        return ""
    return f"{name} is not installed: {_INSTALL}"
