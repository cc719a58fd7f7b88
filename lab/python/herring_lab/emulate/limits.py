"""Checks the values of a network; each error names the value and what is allowed."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from typing import Any

from herring.base.units import parse_seconds, parse_share
from herring.errors import ConfigurationError
from herring_lab.emulate.strict import Path

#: Seconds or a probability, as a number or as text: ``"5ms"``, ``"0.1%"``.
Amount = float | str

MAXIMUM_HOSTS = 250
MAXIMUM_SPINES = 64
# The most seconds of a delay, a jitter or a queue.
_MAXIMUM_SECONDS = 10.0
_MAXIMUM_MTU = 65535
_MAXIMUM_TAP_MTU = 65521  # of the TAP devices at the ends of strict links
_MAXIMUM_SEED = 2**63 - 1


def seconds_of(value: Amount, what: str) -> float:
    """Returns the seconds of a delay or a jitter.

    Raises:
      ConfigurationError: the value is not valid; the error calls it `what`.
    """
    seconds = parse_seconds(value, zero=True) if isinstance(value, str) else _number(value)
    if not 0 <= seconds <= _MAXIMUM_SECONDS:
        raise ConfigurationError(
            f"{what} {value!r}: 0 to {_MAXIMUM_SECONDS:g} seconds are allowed, as in 500us or 5ms"
        )
    return seconds


def loss_of(value: Amount, what: str = "loss") -> float:
    """Returns a probability, 0 to 1; text gives it in percent.

    Raises:
      ConfigurationError: the value is not valid; the error calls it `what`.
    """
    loss = parse_share(value) if isinstance(value, str) else _number(value)
    if not 0 <= loss <= 1:
        raise ConfigurationError(
            f"{what} {value!r}: 0 % to 100 % are allowed (as a number 0.0 to 1.0), as in 0.1%"
        )
    return loss


def require_hosts(hosts: int) -> None:
    """Refuses impossible numbers of hosts."""
    if not _whole(hosts) or not 1 <= hosts <= MAXIMUM_HOSTS:
        raise ConfigurationError(f"a cluster has 1 to {MAXIMUM_HOSTS} hosts, not {hosts!r}")


def require_host(host: int, hosts: int, what: str = "") -> None:
    """Refuses a host outside 0 to `hosts` - 1; the error begins with `what`."""
    if not _whole(host) or not 0 <= host < hosts:
        raise ConfigurationError(f"{what}there is no host {host!r}: they are 0 to {hosts - 1}")


def require_rate(rate_bits: float | None) -> None:
    """Refuses impossible rates; None means no limit and is allowed."""
    if rate_bits is not None and not 1e3 <= _number(rate_bits) <= 1e13:
        raise ConfigurationError(f"a link's rate is 1 kbit/s to 10 Tbit/s, not {rate_bits!r} bit/s")


def require_queue(seconds: float) -> None:
    """Refuses impossible depths of a queue."""
    if not 0 <= _number(seconds) <= _MAXIMUM_SECONDS:
        raise ConfigurationError(
            f"a queue is 0 to {_MAXIMUM_SECONDS:g} seconds deep, not {seconds!r}"
        )


def require_mtu(size: int, strict: bool) -> None:
    """Refuses an MTU that the hosts' devices cannot have."""
    largest = _MAXIMUM_TAP_MTU if strict else _MAXIMUM_MTU
    if not _whole(size) or not 576 <= size <= largest:
        raise ConfigurationError(f"an MTU is 576 to {largest} bytes, not {size!r}")


def require_seed(seed: int) -> None:
    """Refuses a seed that the switch cannot use."""
    if not _whole(seed) or not 0 <= seed <= _MAXIMUM_SEED:
        raise ConfigurationError(f"a seed is 0 to {_MAXIMUM_SEED}, not {seed!r}")


def require_spines(spines: Sequence[Path], hosts: int, strict: bool) -> None:
    """Refuses spines that cannot join two leaves."""
    if len(spines) > MAXIMUM_SPINES:
        raise ConfigurationError(f"a leaf has 1 to {MAXIMUM_SPINES} spines, not {len(spines)}")
    if spines and hosts < 2:
        raise ConfigurationError(
            "paths join even and odd hosts: a single host has none, leave them out"
        )
    for spine in spines:
        require_rate(spine.rate_bits)
        if spine.rate_bits is None and not strict:
            raise ConfigurationError("a path needs a rate unless links are strict")
        seconds_of(spine.delay, "delay of a path")
        seconds_of(spine.jitter, "jitter of a path")
        loss_of(spine.loss, "loss of a path")


def _number(value: Any) -> float:
    """Returns a number; NaN, which every limit refuses, if the value is not a number."""
    return float(value) if isinstance(value, numbers.Real) else math.nan


def _whole(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)
