"""Rates and times as people write them: ``200mbit``, ``20ms``."""

from __future__ import annotations

import re

from herring.errors import ConfigurationError

__all__ = ["parse_loss", "parse_rate", "parse_seconds", "show_rate"]

_RATES = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
_TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_NUMBER = re.compile(r"([0-9]*\.?[0-9]+)\s*([a-z]+)", re.IGNORECASE)
_PERCENT = re.compile(r"([0-9]*\.?[0-9]+)\s*%")


def parse_rate(text: str) -> float:
    """Returns bits per second of e.g. ``200mbit`` or ``1.5gbit``.

    Raises:
      ConfigurationError: the text is no positive rate; names the allowed units.
    """
    return _parse(text, _RATES, "rate", "200mbit")


def parse_seconds(text: str, zero: bool = False) -> float:
    """Returns seconds of e.g. ``20ms`` or ``500us``; with `zero` also of ``0`` and ``0ms``.

    Raises:
      ConfigurationError: the text is no positive time; names the allowed units.
    """
    if zero and text.strip() == "0":
        return 0.0
    return _parse(text, _TIMES, "time", "20ms", zero)


def parse_loss(text: str) -> float:
    """Returns the probability of e.g. ``0.1%``.

    Raises:
      ConfigurationError: the text is none, or there is no % behind it.
    """
    match = _PERCENT.fullmatch(text.strip())
    if match is None or float(match.group(1)) > 100:
        raise ConfigurationError(
            f"{text!r} is not a loss: write a share of the packets from 0% to 100%, as in 0.1%"
        )
    return float(match.group(1)) / 100


def show_rate(bits: float) -> str:
    """Returns e.g. ``200 Mbit/s``."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if bits >= size:
            return f"{bits / size:.4g} {unit}bit/s"
    return f"{bits:.4g} bit/s"


def _parse(
    text: str, units: dict[str, float], what: str, example: str, zero: bool = False
) -> float:
    match = _NUMBER.fullmatch(text.strip())
    size = units.get(match.group(2).lower()) if match else None
    value = float(match.group(1)) * size if match and size else -1.0
    if value < 0 or (value == 0 and not zero):
        number = "a number" if zero else "a number above 0"
        raise ConfigurationError(
            f"{text!r} is not a {what}: write {number} and one of {', '.join(units)}, "
            f"as in {example}"
        )
    return value
