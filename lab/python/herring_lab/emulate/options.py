"""The options of ``herring lab`` that describe a network, and what they mean to a `Cluster`."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from herring.command_line import integer
from herring.errors import ConfigurationError
from herring.units import parse_rate, parse_seconds, parse_size
from herring_lab.emulate.cluster import MTU
from herring_lab.emulate.limits import MAXIMUM_SPINES, loss_of, seconds_of
from herring_lab.emulate.paths import Where
from herring_lab.emulate.strict import Path

__all__ = ["add_network", "network_of"]

_Value = TypeVar("_Value")


def add_network(command: argparse.ArgumentParser) -> None:
    """Adds the options to a parser."""
    network = command.add_argument_group("network")
    network.add_argument(
        "--rate", metavar="RATE", help="of every link in each direction, e.g. 200mbit (no limit)"
    )
    network.add_argument(
        "--queue", default="20ms", metavar="TIME", help="depth of switch queues (default 20ms)"
    )
    network.add_argument(
        "--mtu",
        action="append",
        default=[],
        metavar="[HOST=]BYTES",
        help=f"default {MTU}: jumbo frames; with HOST= of one host, may be repeated",
    )
    network.add_argument(
        "--slow",
        action="append",
        default=[],
        metavar="HOST=RATE",
        help="another rate for one host's link; may be repeated",
    )
    network.add_argument(
        "--paths",
        metavar="PATHS",
        help="leaf and spine: rates of the spines between even and odd hosts, e.g. 4x50mbit or "
        "50mbit,50mbit,5mbit; with @DELAY[+JITTER][/LOSS] behind a rate, a long one: "
        "100mbit@10ms are two sites joined by a thin long link",
    )
    strict = command.add_argument_group(
        "strict links and long paths",
        "A packet takes its length / rate on its host's link, then the delay, then length / rate\n"
        "on the receiver's. Any of these makes links strict; without them a token bucket lets a\n"
        "lone packet through at once. WHERE= limits a value to one host (7=10ms: to and from host\n"
        "7) or to two (0-3=10ms) and may be repeated: a pair's value counts before a host's, of\n"
        "two hosts' the larger.",
    )
    strict.add_argument(
        "--strict", action="store_true", help="links serialize, even if none of these is given"
    )
    where: dict[str, Any] = {"action": "append", "default": []}
    strict.add_argument(
        "--delay", metavar="[WHERE=]TIME", help="one way between hosts, 0 to 10s: 500us", **where
    )
    strict.add_argument(
        "--jitter",
        metavar="[WHERE=]TIME",
        help="a packet takes up to so much longer, but does not overtake: 100us",
        **where,
    )
    strict.add_argument(
        "--loss", metavar="[WHERE=]SHARE", help="of packets, lost at random: 0.1%%", **where
    )
    strict.add_argument(
        "--no-netem", action="store_true", help="the lab's own switch, even if the kernel has netem"
    )
    strict.add_argument(
        "--seed", type=integer, default=1, metavar="N", help="of losses and jitter (default 1)"
    )


def network_of(options: argparse.Namespace) -> dict[str, Any]:
    """Returns the arguments of a `Cluster`, all but the number of hosts.

    Raises:
      ConfigurationError: a value is none; names it and what is allowed.
    """
    delay, delays = _values("--delay", options.delay, lambda t: seconds_of(t, "--delay"))
    jitter, jitters = _values("--jitter", options.jitter, lambda t: seconds_of(t, "--jitter"))
    loss, losses = _values("--loss", options.loss, lambda t: loss_of(t, "--loss"))
    mtu, mtus = _values("--mtu", options.mtu, _mtu)
    for place in mtus:
        if isinstance(place, tuple):
            raise ConfigurationError(f"--mtu {place[0]}-{place[1]}=: a host has an MTU, not a path")
    asked = bool(options.strict or options.delay or options.jitter or options.loss)
    paths = _paths(options.paths)
    long = any(dataclasses.replace(path, rate_bits=None) != Path() for path in paths)
    if options.no_netem and not (asked or mtus or long):
        raise ConfigurationError(
            "--no-netem says who makes strict links, but these are token buckets: add --strict, "
            "--delay, --jitter or --loss, or leave it out"
        )
    return {
        "rate_bits": None if options.rate is None else parse_rate(options.rate),
        "queue_seconds": parse_seconds(options.queue),
        "mtu": MTU if mtu is None else mtu,
        "rates": _slow(options.slow),
        "paths": paths,
        "strict": asked or None,
        "delay": delay or 0.0,
        "jitter": jitter or 0.0,
        "loss": loss or 0.0,
        "delays": delays,
        "jitters": jitters,
        "losses": losses,
        "mtus": mtus,
        "seed": options.seed,
        "kernel": False if options.no_netem else None,
    }


def _values(
    option: str, texts: Sequence[str], read: Callable[[str], _Value]
) -> tuple[_Value | None, dict[Where, _Value]]:
    """Sorts ``VALUE`` and ``HOST=VALUE`` and ``HOST-HOST=VALUE``."""
    whole: _Value | None = None
    places: dict[Where, _Value] = {}
    for text in texts:
        place, equals, value = text.rpartition("=")
        if not equals:
            if whole is not None:
                raise ConfigurationError(
                    f"{option} {text}: it is given twice for all; write HOST={text} for one host"
                )
            whole = read(value)
            continue
        hosts = place.split("-")
        if len(hosts) > 2 or not all(map(_number, hosts)):
            raise ConfigurationError(
                f"{option} {text!r}: before '=' stands a host or two, as in 7={value} or 0-3="
                f"{value}"
            )
        numbers = tuple(sorted(map(int, hosts)))
        key: Where = (numbers[0], numbers[1]) if len(numbers) == 2 else numbers[0]
        if key in places:
            raise ConfigurationError(f"{option} {text}: it is given twice for {place}")
        places[key] = read(value)
    return whole, places


def _mtu(text: str) -> int:
    try:
        return parse_size(text)
    except ConfigurationError as error:
        raise ConfigurationError(f"--mtu: {error}") from None


def _slow(texts: Sequence[str]) -> dict[int, float]:
    rates: dict[int, float] = {}
    for text in texts:
        host, equals, rate = text.partition("=")
        if not equals or not _number(host):
            raise ConfigurationError(f"--slow {text!r}: write HOST=RATE, as in 2=100mbit")
        if int(host) in rates:
            raise ConfigurationError(f"--slow {text}: it is given twice for host {host}")
        rates[int(host)] = parse_rate(rate)
    return rates


def _paths(text: str | None) -> list[Path]:
    paths: list[Path] = []
    for part in [] if text is None else text.split(","):
        count, times, rest = part.partition("x")
        if not (times and _number(count)):
            paths.append(_path(part))
        elif 1 <= int(count) <= MAXIMUM_SPINES:
            paths += [_path(rest)] * int(count)
        else:
            raise ConfigurationError(
                f"--paths {part!r}: 1 to {MAXIMUM_SPINES} times a rate, as in 4x50mbit"
            )
    return paths


def _path(text: str) -> Path:
    rate, long, rest = text.partition("@")
    way, lossy, loss = rest.partition("/")
    delay, jittery, jitter = way.partition("+")
    return Path(
        parse_rate(rate),
        seconds_of(delay, "--paths: delay") if long else 0.0,
        seconds_of(jitter, "--paths: jitter") if jittery else 0.0,
        loss_of(loss, "--paths: loss") if lossy else 0.0,
    )


def _number(text: str) -> bool:
    return text.isascii() and text.isdecimal()
