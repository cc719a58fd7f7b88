"""Describes how a result was produced; every JSON document with results has this description."""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from herring.version import commit, version

__all__ = ["provenance", "write_results"]


def provenance(options: Any = None) -> dict[str, Any]:
    """Returns the version, the place, the time and the options with which a result was produced.

    Args:
      options: The options given, as a mapping or a parser's namespace. Functions are left out, and
        values that JSON cannot represent become text.

    Returns:
      A dictionary with these keys. ``version``. ``commit``: 40 hexadecimal digits in a checkout,
      fewer in an installed package, None if unknown. ``modified``: whether files differ from that
      commit, None if unknown. ``date``: in UTC. ``host``: its name, ``system``, ``processor``,
      ``cores`` that this process may use, ``memory_bytes`` and ``python``. ``options``.
    """
    digits, modified = commit()
    given = options if isinstance(options, Mapping) else vars(options) if options else {}
    return {
        "version": version(),
        "commit": digits,
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
    """Writes a JSON document with results and their provenance; a failed write leaves no file.

    Args:
      path: The file to write.
      document: The keys of the document besides ``provenance``.
      options: The options given, as a mapping or a parser's namespace.
    """
    whole = {**document, "provenance": provenance(options)}
    partial = Path(f"{os.fspath(path)}.partial")  # a reader may be waiting for the file
    partial.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)


def _processor() -> str:
    """Returns the name of the processor, or its architecture if the system tells no name."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    found = re.search(r"^model name\s*: (.*)$", text, re.MULTILINE)
    return found[1] if found else platform.machine()


def _plain(value: Any) -> Any:
    """Returns the value in a form that JSON can represent."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return str(value)
