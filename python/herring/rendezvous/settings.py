"""Settings as this side reads them: rows and parser are the core's (src/base/settings_table.h)."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Setting", "given", "named", "port_range", "setting", "value_of", "variables_of"]

_BLANKS = " \t\n\r"


@dataclass(frozen=True)
class Setting:
    """A row of the table.

    Attributes:
        name: As an option: ``log_level``.
        env: Its variable: ``HERRING_LOG_LEVEL``.
        type: ``int``, ``bool``, ``enum``, ``string``, ``name``, ``secret``, ``address`` ...
        scope: ``launcher`` and ``environment`` (no options of ``init()``), ``process`` or ``job``.
        minimum: Of a number, or of a text's length in bytes.
        maximum: Likewise.
        choices: Of an ``enum``.
        default: As text; of a text, empty is not set.
        flags: The command's options that set it, and what stands for the value.
        help: What it means.
        allowed: What it accepts, in words.
    """

    name: str
    env: str
    type: str
    scope: str
    minimum: float
    maximum: float
    choices: list[str]
    default: str
    flags: str
    help: str
    allowed: str

    def parse(self, text: str, origin: str | None = None) -> Any:
        """The value that a text means: a bool, an int, seconds, or a text without blanks around.

        Args:
            text: As somebody wrote it.
            origin: Variable or option, for the message; by default the variable. Empty: the message
                begins with the value.

        Raises:
            ConfigurationError: Names origin, value (but no secret) and what is allowed.
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
    """The row of a variable, such as ``HERRING_RANK``."""
    return _table()[variable]


def named(name: str) -> Setting:
    """The row of an option, such as ``log_level``."""
    return setting(f"HERRING_{name.upper()}")


def variables_of(*scopes: str) -> frozenset[str]:
    """The variables of these scopes."""
    return frozenset(each.env for each in _table().values() if each.scope in scopes)


def given(env: Mapping[str, str], variable: str) -> Any:
    """What a variable is set to; None where it is not, or only to blanks.

    Raises:
        ConfigurationError: As of `Setting.parse`.
    """
    text = env.get(variable, "").strip(_BLANKS)
    return setting(variable).parse(text) if text else None


def value_of(env: Mapping[str, str], variable: str) -> Any:
    """What a variable is set to, else the default.

    Raises:
        ConfigurationError: As of `Setting.parse`.
    """
    row = setting(variable)
    return row.parse(env.get(variable, "").strip(_BLANKS) or row.default)


def port_range(env: Mapping[str, str]) -> range | None:
    """The ports of ``HERRING_PORTS``; None: any.

    Raises:
        ConfigurationError: It is not a range of ports.
    """
    text = given(env, "HERRING_PORTS")
    if text is None:
        return None
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)
