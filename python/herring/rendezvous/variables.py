"""Reads variables that launchers set; errors name the variable, its value and what is allowed."""

from __future__ import annotations

import re
from collections.abc import Mapping

from herring.errors import ConfigurationError
from herring.rendezvous.settings import given, setting


def integer(
    env: Mapping[str, str], variable: str, least: int = 0, most: int | None = None
) -> int | None:
    """Returns the variable as an integer, or None if it is not set.

    Args:
        variable: One of Herring's variables, which have their own limits, or another launcher's.
        most: The largest value of another launcher's variable; None means the largest number of
            workers that a job may have.

    Raises:
        ConfigurationError: The value is not an integer that is allowed.
    """
    if variable.startswith("HERRING_"):
        return given(env, variable)
    text = env.get(variable)
    if text is None:
        return None
    limit = int(setting("HERRING_SIZE").maximum) if most is None else most
    number = int(text) if re.fullmatch(r"[+-]?\d{1,18}", text, re.ASCII) else least - 1
    if not least <= number <= limit:
        allowed = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise ConfigurationError(f"{variable}={text} is not valid: allowed is an integer {allowed}")
    return number


def first(env: Mapping[str, str], *variables: str) -> str:
    """Returns the first of `variables` that is set, else the first variable (for messages)."""
    return next((name for name in variables if name in env), variables[0])
