"""Reads environment variables; errors name the variable, its value and what is allowed."""

from __future__ import annotations

from collections.abc import Mapping

from herring.rendezvous import settings
from herring.rendezvous.settings import MAXIMUM_SIZE, bad

__all__ = ["MAXIMUM_SIZE", "bad", "first", "integer"]


def integer(env: Mapping[str, str], variable: str, least: int, most: int) -> int | None:
    """The variable as an integer, or None if it is not set.

    Raises:
        ConfigurationError: It is no integer from `least` to `most`.
    """
    text = env.get(variable)
    if text is None:
        return None
    number = settings.integer(text)
    if number is None or not least <= number <= most:
        limit = f"an integer from {least} to {most}"
        if most == MAXIMUM_SIZE:
            limit = f"an integer of at least {least}"
        raise bad(variable, text, limit)
    return number


def first(env: Mapping[str, str], *variables: str) -> str:
    """The first of `variables` that is set, else the first one (for messages)."""
    return next((name for name in variables if name in env), variables[0])
