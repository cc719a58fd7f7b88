"""Which Herring is installed: its version, its commit and the protocol that it speaks."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

_GIT_SECONDS = 5


def version() -> str:
    """Returns the version that pip shows, which comes from the newest tag at build time."""
    from importlib import metadata  # takes longer to import than all that `herring run` needs

    try:
        return metadata.version("herring-dl")
    except metadata.PackageNotFoundError:
        return "unknown (not installed)"


def commit(root: Path | None = None) -> tuple[str | None, bool | None]:
    """Finds the commit in the checkout of Herring, or else in the version's text.

    Args:
        root: The folder that may be a checkout; by default the one that holds this package.

    Returns:
        40 hexadecimal digits from a checkout, fewer from an installed package, None where no
        repository is known; and whether files differ from that commit, None where it is not known.
    """
    root = root or Path(__file__).resolve().parents[3]
    if (root / ".git").exists():
        try:
            head = _git(root, "rev-parse", "HEAD")
            changed = _git(root, "status", "--porcelain", "--untracked-files=no")
        except (OSError, subprocess.SubprocessError):
            pass  # git is not installed, or does not trust the folder
        else:
            return head, bool(changed)
    found = re.search(r"\+g([0-9a-f]+)(\.d\d+)?$", version())
    return (found[1], found[2] is not None) if found else (None, None)


def description() -> str:
    """Returns the line of ``herring --version``, for a bug report.

    Processes of one job must speak the same protocol.
    """
    try:
        from herring import _core

        protocol = f"protocol {_core.PROTOCOL_VERSION}"
    except ImportError:
        protocol = "protocol not known: the extension module herring._core is missing"
    digits, modified = commit()
    changes = " with changes" if modified else ""
    return f"herring {version()} ({protocol}, commit {digits or 'not known'}{changes})"


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(root), *words],
        capture_output=True,
        text=True,
        check=True,
        timeout=_GIT_SECONDS,
    )
    return done.stdout.strip()
