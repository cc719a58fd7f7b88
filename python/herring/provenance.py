"""Where a result comes from: what every JSON document with results says about its making."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from herring.version import version

__all__ = ["provenance", "write_results"]


def provenance(options: Any = None) -> dict[str, Any]:
    """Says by which version, where, when and with which options a result was made.

    Args:
      options: what was asked for: a mapping, or a parser's namespace. Functions among them are left
        out, and what JSON does not know becomes text.

    Returns:
      ``version``; ``commit``: 40 hexadecimal digits from a checkout, fewer from an installed
      package, None where no repository is known; ``modified``: whether files differed from that
      commit, None where it is not known; ``date``: UTC; ``host``: its name, ``system``,
      ``processor``, ``cores`` that this process may use, ``memory_bytes``, ``python``; ``options``.
    """
    commit, modified = _commit(Path(__file__).resolve().parents[2])
    given = options if isinstance(options, Mapping) else vars(options) if options else {}
    return {
        "version": version(),
        "commit": commit,
        "modified": modified,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "host": {
            "name": platform.node(),
            "system": f"{platform.system()} {platform.release()}",
            "processor": _processor(),
            "cores": len(os.sched_getaffinity(0)),
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "python": platform.python_version(),
        },
        "options": {name: _plain(value) for name, value in given.items() if not callable(value)},
    }


def write_results(path: str | os.PathLike[str], document: Mapping[str, Any], options: Any) -> None:
    """Writes a JSON document with results, and where they come from: whole or not at all.

    Args:
      path: of the file.
      document: what there is to say beside ``provenance``.
      options: as of `provenance`.
    """
    whole = {**document, "provenance": provenance(options)}
    partial = Path(f"{os.fspath(path)}.partial")  # a reader may be waiting for the file
    partial.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)


def _commit(root: Path) -> tuple[str | None, bool | None]:
    """The commit, and whether files differ from it: of the checkout, else of the version's text."""
    if (root / ".git").exists():
        git = ["git", "-C", str(root)]
        try:
            head = subprocess.run(
                [*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True, timeout=5
            )
            changed = subprocess.run(
                [*git, "status", "--porcelain", "--untracked-files=no"],
                capture_output=True,
                text=True,
                check=True,
                timeout=5,
            )
        except (OSError, subprocess.SubprocessError):
            pass  # no git here, or one that does not trust the folder
        else:
            return head.stdout.strip(), bool(changed.stdout.strip())
    found = re.search(r"\+g([0-9a-f]+)(\.d\d+)?$", version())
    return (found[1], found[2] is not None) if found else (None, None)


def _processor() -> str:
    """The processor's name, or that of its kind."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    found = re.search(r"^model name\s*: (.*)$", text, re.MULTILINE)
    return found[1] if found else platform.machine()


def _plain(value: Any) -> Any:
    """The value as JSON can hold it."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return str(value)
