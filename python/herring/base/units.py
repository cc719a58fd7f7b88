"""Parses and shows times, sizes, rates, shares, counts and lists as people write them.

==========  ==============================================  ==========================
a time      ``450ms``, ``50us``, ``5m``, ``1h``, ``30``     a number alone is seconds
a size      ``64K``, ``1.5GB``, ``4MiB``, ``8192``          K is 1000, Ki is 1024 bytes
a rate      ``200mbit``, ``10Gbps``, ``1.5Gbit/s``, ``10G``  bits per second
a share     ``0.5%``                                        a number alone is refused
==========  ==============================================  ==========================

Upper and lower case are the same. The core parses times and sizes, as it does for settings.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from herring.errors import ConfigurationError

_Value = TypeVar("_Value")
_NUMBER = r"([0-9]+\.?[0-9]*|\.[0-9]+)"
_RATE = re.compile(_NUMBER + r"\s*(?=\S)([kmgt]?)(bits?/s|bits?|bps|b/s)?", re.IGNORECASE)
_FACTORS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_MOST_RANGES = 8  # of a list of numbers
_SHARE = re.compile(_NUMBER + r"\s*%")


def parse_seconds(text: str, zero: bool = False) -> float:
    """Returns seconds of e.g. ``20ms``, ``5m`` or ``30``.

    Args:
      zero: Whether ``0`` is allowed.

    Raises:
      ConfigurationError: `text` is not such a time; the message names the allowed units.
    """
    from herring import _core  # imported here because the launcher does not need the core otherwise

    try:
        seconds = float(_core.parse_seconds(text))
    except ConfigurationError:
        seconds = -1.0
    if seconds < 0 or (seconds == 0 and not zero):
        number = "a number" if zero else "a number above 0"
        raise ConfigurationError(
            f"{text!r} is not a time: write {number} and one of us, ms, s, m, h (or nothing: "
            "seconds), as in 20ms or 5m"
        )
    return seconds


def parse_size(text: str) -> int:
    """Returns the bytes, a whole number above 0, in e.g. ``25M``, ``1.5GB`` or ``64KiB``."""
    from herring import _core

    try:
        size = int(_core.parse_bytes(text))
    except ConfigurationError:
        size = 0
    if size < 1:
        raise ConfigurationError(
            f"{text!r} is not a size: write a whole number of bytes above 0, as in 8192, "
            "25M or 64KiB"
        )
    return size


def parse_rate(text: str) -> float:
    """Returns the bits per second, a rate above 0, in e.g. ``200mbit``, ``10Gbps`` or ``10G``."""
    match = _RATE.fullmatch(text.strip())
    value = float(match.group(1)) * _FACTORS[match.group(2).lower()] if match else 0.0
    if "B/s" in text:
        value = 0.0  # the capital B may mean bytes
    if not value > 0:
        raise ConfigurationError(
            f"{text!r} is not a rate: write a number of bits per second above 0 and one of kbit, "
            "mbit, gbit, tbit, as in 200mbit or 10Gbps"
        )
    return value


def parse_share(text: str) -> float:
    """Returns the share in e.g. ``0.1%`` as a number from 0 to 1.

    Raises:
      ConfigurationError: `text` is not a share. A number without % is refused, because 0.5 may mean
        a half or half of 1 %.
    """
    match = _SHARE.fullmatch(text.strip())
    if match is None or float(match.group(1)) > 100:
        raise ConfigurationError(f"{text!r} is not a share: write 0% to 100%, as in 0.1%")
    return float(match.group(1)) / 100


def argument(parse: Callable[[str], _Value]) -> Callable[[str], _Value]:
    """Makes one of these parsers the ``type=`` of a command-line option."""

    def typed(text: str) -> _Value:
        try:
            return parse(text)
        except ConfigurationError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return typed


def parse_option(option: str, parse: Callable[[str], _Value], text: str) -> _Value:
    """Returns what `parse` makes of an option's value; its error begins with the option's name."""
    try:
        return parse(text)
    except ConfigurationError as error:
        raise ConfigurationError(f"{option}: {error}") from None


def counted(number: int, noun: str) -> str:
    """Returns a number with its noun, e.g. ``1 worker`` or ``2 workers``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def listed(words: Sequence[str], most: int | None = 4) -> str:
    """Returns ``h1, h2 and h3``; with more than `most` words ``h1, h2 and 14 more``."""
    if most is not None and len(words) > most:
        words = [*words[: most - 1], f"{len(words) - most + 1} more"]
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def numbers_text(numbers: Iterable[int]) -> str:
    """Returns numbers in their order, as the core writes them: ``0-1, 4-7``.

    More than eight ranges are cut.
    """
    ranges: list[list[int]] = []
    for number in sorted(set(numbers)):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    texts = [f"{first}" if first == last else f"{first}-{last}" for first, last in ranges]
    if len(texts) > _MOST_RANGES:
        cut = sum(last - first + 1 for first, last in ranges[_MOST_RANGES:])
        return f"{', '.join(texts[:_MOST_RANGES])} and {cut} more"
    return ", ".join(texts)


def ranks_text(ranks: Iterable[int], kind: str = "rank") -> str:
    """Returns numbers with their noun, such as ``rank 3``, ``ranks 0, 4-7`` or ``server 1``."""
    numbers = set(ranks)
    return f"{kind}{'' if len(numbers) == 1 else 's'} {numbers_text(numbers)}"


def show_duration(seconds: float) -> str:
    """Returns a measured time: ``310 us``, ``1.2 ms``, ``31 ms``, ``1.3 s`` or ``12 min``."""
    if seconds < 0:
        return f"-{show_duration(-seconds)}"
    if seconds < 0.5e-6:
        return "0 s"
    if seconds < 0.9995e-3:
        return f"{seconds * 1e6:.0f} us"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.{int(seconds < 9.95e-3)}f} ms"
    return f"{seconds:.1f} s" if seconds < 9.95 else show_time(seconds)


def show_time(seconds: float) -> str:
    """Returns the time that long work takes, such as ``40 s``, ``12 min`` or ``1 h 05 min``."""
    if seconds < 99.5:
        return f"{max(seconds, 0):.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"


def in_seconds(seconds: float) -> str:
    """Returns a wait or its limit as the core's messages have it: ``1800 s`` or ``20 ms``."""
    value, unit = (seconds * 1e3, "ms") if 0 < seconds < 0.1 else (seconds, "s")
    return f"{value:.2g} {unit}" if value < 9.95 else f"{value:.0f} {unit}"


def show_rate(bits: float) -> str:
    """Returns a rate as text, e.g. ``200 Mbit/s``."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if bits >= size:
            return f"{bits / size:.4g} {unit}bit/s"
    return f"{bits:.4g} bit/s"


def show_size(value: float) -> str:
    """Returns a number of bytes as text, e.g. ``1.5 MB``, in powers of 1000."""
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB"
