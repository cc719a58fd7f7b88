"""Refuses values that no job or network can have."""

from __future__ import annotations

from herring.errors import ConfigurationError


def require_within(name: str, value: float, least: float, most: float, unit: str = "") -> None:
    """Checks that `value` is from `least` to `most`.

    Raises:
      ConfigurationError: the value is outside this range or is not a number. The error calls it
        `name` and says what is allowed.
    """
    if not least <= value <= most:
        unit = f" {unit}" if unit else ""
        raise ConfigurationError(
            f"{name} is {value:.6g}{unit}; it must be from {least:.6g} to {most:.6g}{unit}"
        )
