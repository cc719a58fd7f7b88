"""What the launcher's side must know of settings before there is a core.

``settings.json`` is written from the core's table (``src/base/settings_table.h``) by
tools/make_settings_doc.py, so that ranges stand in one place. Whatever the environment alone can
set is checked here as the core checks it; the rest is the core's.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from herring.errors import ConfigurationError

__all__ = [
    "MAXIMUM_SIZE",
    "Setting",
    "bad",
    "check",
    "choice",
    "environment_only",
    "integer",
    "is_on",
    "port_range",
    "range_of",
    "setting",
    "value_of",
]

_BLANKS = " \t\n\r"
_YES, _NO = ("true", "1", "yes", "on"), ("false", "0", "no", "off")
_FORMS = {
    "name": re.compile(r"[A-Za-z0-9._-]*"),
    "hex": re.compile(r"([0-9A-Fa-f]{2})*"),
    "address": re.compile(r"(?:\[[0-9A-Za-z:.%_]+\]|[^\s:\[\]/]+):(?P<port>\d{1,5})", re.ASCII),
    "ports": re.compile(r"(?P<first>\d{1,5})\s*(?:-\s*(?P<last>\d{1,5}))?", re.ASCII),
}
_MOST_PORT = 65535


@dataclass(frozen=True)
class Setting:
    """A row of the table.

    Attributes:
        name: As an option: ``log_level``.
        env: Its variable: ``HERRING_LOG_LEVEL``.
        type: ``int``, ``bool``, ``enum``, ``string``, ``name``, ``hex``, ``address``, ``ports`` ...
        scope: ``environment`` (no option of ``init()``), ``process`` or ``job``.
        minimum: Of a number, or of a text's length in bytes.
        maximum: Likewise.
        choices: Of an ``enum``.
        allowed: What it accepts, in words.
    """

    name: str
    env: str
    type: str
    scope: str
    minimum: float
    maximum: float
    choices: tuple[str, ...]
    allowed: str

    def accepts(self, text: str) -> bool:
        """Whether the variable can have this value, which is not blank.

        Raises:
            NotImplementedError: It is of a type that only the core reads.
        """
        text = text.strip(_BLANKS)
        if self.type == "int":
            number = integer(text)
            return number is not None and self.minimum <= number <= self.maximum
        if self.type == "bool":
            return text.lower() in _YES + _NO
        if self.type == "enum":
            return text.lower() in self.choices
        if self.type not in ("string", *_FORMS):
            raise NotImplementedError(self.type)
        if not self.minimum <= len(text.encode(errors="surrogateescape")) <= self.maximum:
            return False
        if self.type == "string":
            return True
        match = _FORMS[self.type].fullmatch(text)
        if match is None:
            return False
        ports = [int(port) for port in match.groupdict().values() if port is not None]
        return all(1 <= port <= _MOST_PORT for port in ports) and ports == sorted(ports)


@functools.cache
def _table() -> dict[str, Setting]:
    rows = json.loads(Path(__file__).with_name("settings.json").read_text(encoding="utf-8"))
    found = (Setting(**{**row, "choices": tuple(row["choices"])}) for row in rows)
    return {each.env: each for each in found}


def setting(variable: str) -> Setting:
    """The row of a variable, such as ``HERRING_RANK``."""
    return _table()[variable]


def environment_only() -> frozenset[str]:
    """Names of the settings that are no options of ``init()``."""
    return frozenset(each.name for each in _table().values() if each.scope == "environment")


def range_of(variable: str) -> tuple[int, int]:
    """Least and most of an integer."""
    row = setting(variable)
    return int(row.minimum), int(row.maximum)


MAXIMUM_SIZE = range_of("HERRING_SIZE")[1]


def bad(variable: str, value: object, allowed: str) -> ConfigurationError:
    """The error for a value that is not allowed."""
    return ConfigurationError(f"{variable}={value!s} is not valid: allowed is {allowed}")


def value_of(env: Mapping[str, str], variable: str) -> str | None:
    """The text of a variable without blanks around it; None if it is not set.

    Raises:
        ConfigurationError: It has a value that is not allowed.
    """
    text = env.get(variable, "").strip(_BLANKS)
    if not text:
        return None
    check(variable, text)
    return text


def check(variable: str, text: str) -> None:
    """Refuses a value that a variable cannot have.

    Raises:
        ConfigurationError: Names variable, value (but no secret) and what is allowed.
    """
    row = setting(variable)
    if not row.accepts(text):
        shown = f"(not shown, {len(text)} characters)" if row.type == "hex" else text
        raise bad(variable, shown, row.allowed)


def is_on(env: Mapping[str, str], variable: str) -> bool:
    """Whether a variable that means yes or no says yes; if it is not set, no."""
    text = value_of(env, variable)
    return text is not None and text.lower() in _YES


def choice(env: Mapping[str, str], variable: str) -> str:
    """Which of its choices a variable names; the first if it is not set."""
    return (value_of(env, variable) or setting(variable).choices[0]).lower()


def port_range(env: Mapping[str, str]) -> range | None:
    """The ports of ``HERRING_PORTS``; None: any.

    Raises:
        ConfigurationError: It is no range of ports.
    """
    text = value_of(env, "HERRING_PORTS")
    if text is None:
        return None
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def integer(text: str) -> int | None:
    """The number that a text is, as the core reads it; None if it is none."""
    if not re.fullmatch(r"[+-]?\d+", text, re.ASCII):
        return None
    digits = text.lstrip("+-").lstrip("0") or "0"
    if len(digits) > 18:
        return None
    return -int(digits) if text.startswith("-") else int(digits)
