"""Refuses what no job or network has."""

from __future__ import annotations

from herring.errors import ConfigurationError

__all__ = ["require_within"]


def require_within(name: str, value: float, least: float, most: float, unit: str = "") -> None:
    """Returns if `value`, which is called `name` in the error, is from `least` to `most`.

    Raises:
      ConfigurationError: it is not, or is no number; names it and what is allowed.
    """
    if not least <= value <= most:
        unit = f" {unit}" if unit else ""
        raise ConfigurationError(
            f"{name} is {value:.6g}{unit}; it is from {least:.6g} to {most:.6g}{unit}"
        )
