"""Describes how a result was produced; every JSON document with results has this description."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import platform
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from herring.base.version import commit, version
from herring.errors import ConfigurationError


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
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
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


def require_writable(path: str | os.PathLike[str], option: str) -> None:
    """Raises ConfigurationError, with option and reason, if a file could not be written."""
    place = Path(path)
    try:
        if place.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if _is_special(place):
            with place.open("a", encoding="utf-8"):
                return
        partial = _partial(place)
        partial.open("w", encoding="utf-8").close()
        partial.unlink()
    except OSError as error:
        raise ConfigurationError(f"{option} {path}: cannot be written: {error.strerror}") from None


@contextlib.contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[None]:
    """Makes an OSError a ConfigurationError that says which file could not be written."""
    try:
        yield
    except OSError as error:
        place = error.filename or os.fspath(path)
        raise ConfigurationError(f"cannot write {place}: {error.strerror or error}") from None


def write_results(path: str | os.PathLike[str], document: Mapping[str, Any], options: Any) -> None:
    """Writes a JSON document with results and their provenance; a failed write leaves no file.

    Args:
      document: The keys of the document besides ``provenance``.
      options: The options given, as a mapping or a parser's namespace.

    Raises:
      ConfigurationError: The file cannot be written.
    """
    text = json.dumps({**document, "provenance": provenance(options)}, indent=1) + "\n"
    place = Path(path)
    with writing(place):
        if _is_special(place):  # such as /dev/stdout, which must not be replaced
            place.write_text(text, encoding="utf-8")
            return
        partial = _partial(place)
        try:
            partial.write_text(text, encoding="utf-8")
            partial.replace(place)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise


def _partial(place: Path) -> Path:
    """Returns the file that gets its name only when it is whole: a reader may be waiting."""
    return place.with_name(f"{place.name}.partial")


def _is_special(place: Path) -> bool:
    return place.exists() and not place.is_file()


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
