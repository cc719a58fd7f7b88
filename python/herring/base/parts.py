"""Says where data files and optional parts are, and what to install for a missing part."""

from __future__ import annotations

import importlib
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from herring.errors import ConfigurationError

#: The package of the distribution herring-dl-lab.
LAB = "herring_lab"

# Herring is not in a package index yet, so these commands run in a copy of its repository.
_COPY = "in a copy of Herring's repository"


def data_file(name: str, parse: Callable[[str], Any] = json.loads) -> Any:
    """Returns the content of a data file of this package, which users may have edited.

    Args:
      name: Where it is in the package, such as ``observe/dashboard.json``.

    Raises:
      ConfigurationError: The text is not what `parse` reads; the error says where it is wrong.
    """
    path = Path(__file__).parents[1] / name
    try:
        return parse(path.read_text(encoding="utf-8"))
    except Exception as error:  # what parsers raise has no type in common
        where = " ".join(str(error).split())
        raise ConfigurationError(f"{path} cannot be read: {where}") from None


def missing_part(error: ModuleNotFoundError) -> str:
    """Says what to install if the import of a part of the lab failed; otherwise returns ""."""
    name = error.name or ""
    if name.partition(".")[0] != LAB:
        return ""
    return f"Herring's laboratory is not installed: pip install ./lab {_COPY}"


def import_optional(module: str, name: str, purpose: str, extra: str) -> Any:
    """Imports a package that Herring needs for one purpose only.

    Args:
      purpose: What the package does, after "which".

    Raises:
      ConfigurationError: The package is not installed; the error says how to install it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        text = f"{name} is not installed, which {purpose}: {install_command(extra)}"
        raise ConfigurationError(text) from None


def install_command(extra: str) -> str:
    """Returns the command that installs the packages of an optional part, for a message.

    The command names the packages of the extra instead of the extra itself, so that it works
    wherever Herring was installed from.

    Args:
      extra: One of the extras in pyproject.toml, such as ``torch``.

    Returns:
      A command such as ``pip install 'torch>=2.9'``.
    """
    from importlib import metadata

    try:
        listed = metadata.requires("herring-dl") or []
    except metadata.PackageNotFoundError:
        return f"pip install '.[{extra}]' {_COPY}"
    marked = re.compile(rf"""(.*?)\s*;\s*extra\s*==\s*["']{extra}["']""")
    found = [match[1] for match in map(marked.fullmatch, listed) if match]
    return "pip install " + " ".join(map(shlex.quote, found))
