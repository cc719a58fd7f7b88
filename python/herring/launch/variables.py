"""Reads environment variables; errors name the variable, its value and what is allowed."""

from __future__ import annotations

import re
from collections.abc import Mapping

from herring.errors import ConfigurationError

__all__ = ["MAXIMUM_SIZE", "bad", "first", "integer"]

MAXIMUM_SIZE = 1 << 20


def bad(variable: str, value: object, allowed: str) -> ConfigurationError:
    """The error for a value that is not allowed."""
    return ConfigurationError(f"{variable}={value!s} is not valid: allowed is {allowed}")


def integer(env: Mapping[str, str], variable: str, least: int, most: int) -> int | None:
    """The variable as an integer, or None if it is not set.

    Raises:
        ConfigurationError: It is no integer from `least` to `most`.
    """
    text = env.get(variable)
    if text is None:
        return None
    if not re.fullmatch(r"-?\d{1,18}", text, re.ASCII) or not least <= int(text) <= most:
        limit = f"an integer from {least} to {most}"
        if most == MAXIMUM_SIZE:
            limit = f"an integer of at least {least}"
        raise bad(variable, text, limit)
    return int(text)


def first(env: Mapping[str, str], *variables: str) -> str:
    """The first of `variables` that is set, else the first one (for messages)."""
    return next((name for name in variables if name in env), variables[0])
