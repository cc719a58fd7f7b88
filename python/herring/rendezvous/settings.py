"""Herring's settings in Python; the core has their table and parser (src/base/settings_table.h)."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_BLANKS = " \t\n\r"


@dataclass(frozen=True)
class Setting:
    """A row of the table."""

    name: str  # the name of the option of ``init()``: ``log_level``
    env: str  # the environment variable: ``HERRING_LOG_LEVEL``
    type: str  # ``int``, ``bool``, ``enum``, ``string``, ``name``, ``secret``, ``address``
    # ``launcher`` and ``environment`` (not options of ``init()``), ``process`` or ``job``.
    scope: str
    minimum: float  # the least value of a number, or the least length of a text in bytes
    maximum: float  # the largest value of a number, or the largest length of a text in bytes
    choices: list[str]  # the values of an ``enum``
    default: str  # the default as text; an empty text means that the setting is not set
    flags: str  # the command-line options that set it, and the placeholder of the value
    help: str  # what the setting means
    allowed: str  # what the setting accepts, in words

    def parse(self, text: str, origin: str | None = None) -> Any:
        """Returns the value of a text: a bool, an int, seconds, or the text without outer blanks.

        Args:
            origin: The variable or option, for the message. None means the setting's variable. An
                empty text makes the message begin with the value.

        Raises:
            ConfigurationError: The text is not allowed. The message has the origin, the value
                (unless it is a secret) and what is allowed.
        """
        hidden = f"(hidden, {len(text)} characters)" if self.type == "secret" else text
        origin = self.env if origin is None else origin
        between = " " if origin.startswith("-") else "="
        shown = f"{origin}{between}{hidden}" if origin else repr(hidden)
        from herring import _core

        value = _core.parse_setting(
            self.name,
            text.encode(errors="surrogateescape"),
            shown.encode(errors="replace").decode(),
        )
        return value.decode(errors="surrogateescape") if isinstance(value, bytes) else value


@functools.cache
def _table() -> dict[str, Setting]:
    from herring import _core

    return {row["env"]: Setting(**row) for row in _core.setting_rows()}


def setting(variable: str) -> Setting:
    """Returns the row of a variable, such as ``HERRING_RANK``."""
    return _table()[variable]


def named(name: str) -> Setting:
    """Returns the row of an option, such as ``log_level``."""
    return setting(f"HERRING_{name.upper()}")


def variables_of(*scopes: str) -> frozenset[str]:
    """Returns the variables of these scopes."""
    return frozenset(each.env for each in _table().values() if each.scope in scopes)


def given(env: Mapping[str, str], variable: str) -> Any:
    """Returns a variable's value, or None if it is blank; ConfigurationError if it is wrong."""
    text = env.get(variable, "").strip(_BLANKS)
    return setting(variable).parse(text) if text else None


def value_of(env: Mapping[str, str], variable: str) -> Any:
    """Returns a variable's value or its default; ConfigurationError if it is not allowed."""
    row = setting(variable)
    return row.parse(env.get(variable, "").strip(_BLANKS) or row.default)


def port_range(env: Mapping[str, str]) -> range | None:
    """Returns the range of ports in ``HERRING_PORTS``; None means any port."""
    text = given(env, "HERRING_PORTS")
    if text is None:
        return None
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)
