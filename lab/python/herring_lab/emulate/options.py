"""Options of ``herring lab`` that describe a network, and their translation for `Cluster`."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from herring.base.units import parse_option, parse_rate, parse_seconds, parse_size
from herring.errors import ConfigurationError
from herring.terminal.command_line import integer
from herring_lab.emulate.cluster import MTU
from herring_lab.emulate.limits import MAXIMUM_SPINES, loss_of, seconds_of
from herring_lab.emulate.paths import Where
from herring_lab.emulate.strict import Path

_Value = TypeVar("_Value")


def add_queue(parser: argparse._ActionsContainer) -> None:
    """Adds the option of the queue to a parser, or to a group of its options."""
    parser.add_argument(
        "--queue",
        default="20ms",
        metavar="TIME",
        help="most time a packet may wait in a queue (default 20ms)",
    )


def add_network(command: argparse.ArgumentParser) -> None:
    """Adds the network options to a parser."""
    network = command.add_argument_group("network")
    network.add_argument(
        "--rate",
        metavar="RATE",
        help="rate of each link, each way, as in 200mbit (default: no limit)",
    )
    add_queue(network)
    network.add_argument(
        "--mtu",
        action="append",
        default=[],
        metavar="[HOST=]BYTES",
        help=f"largest IP packet (default {MTU}, jumbo frames); HOST= limits the value to one host "
        "and may be repeated",
    )
    network.add_argument(
        "--slow",
        action="append",
        default=[],
        metavar="HOST=RATE",
        help="rate of one host's link, where it differs from --rate; may be repeated",
    )
    network.add_argument(
        "--paths",
        metavar="PATHS",
        help="put even and odd hosts on two leaf switches, and join these by spines with these "
        "rates, as in 4x50mbit or 50mbit,50mbit,5mbit. RATE@DELAY[+JITTER][/LOSS] makes a spine "
        "long: 100mbit@10ms joins two sites by one thin, long link.",
    )
    strict = command.add_argument_group(
        "strict links and long paths",
        "On strict links a packet takes length / rate on the sender's link, then the delay, then\n"
        "length / rate on the receiver's link. --strict, --delay, --jitter, --loss and --mtu\n"
        "HOST=BYTES make all links strict. Otherwise links are token buckets, which let a lone\n"
        "packet through at once.\n"
        "WHERE= limits a value to one host (7=10ms: to and from host 7) or to a pair of hosts\n"
        "(0-3=10ms), and may be repeated. The value of a pair overrides those of its hosts; of\n"
        "the values of two hosts, the larger counts.",
    )
    strict.add_argument(
        "--strict", action="store_true", help="make links strict without delay, jitter or loss"
    )
    where: dict[str, Any] = {"action": "append", "default": []}
    strict.add_argument(
        "--delay",
        metavar="[WHERE=]TIME",
        help="one-way delay between hosts, 0 to 10s, as in 500us",
        **where,
    )
    strict.add_argument(
        "--jitter",
        metavar="[WHERE=]TIME",
        help="random extra delay of a packet, 0 to TIME, as in 100us; packets keep their order",
        **where,
    )
    strict.add_argument(
        "--loss",
        metavar="[WHERE=]SHARE",
        help="share of packets lost at random, as in 0.1%%",
        **where,
    )
    strict.add_argument(
        "--no-netem",
        action="store_true",
        help="use the lab's own switch, even if the kernel has netem",
    )
    strict.add_argument(
        "--seed", type=integer, default=1, metavar="N", help="seed of losses and jitter (default 1)"
    )


def network_of(options: argparse.Namespace) -> dict[str, Any]:
    """Returns all arguments of a `Cluster` except for the number of hosts.

    Raises:
      ConfigurationError: a value is not valid; the error names it and what is allowed.
    """
    delay, delays = _values("--delay", options.delay, lambda t: seconds_of(t, "--delay"))
    jitter, jitters = _values("--jitter", options.jitter, lambda t: seconds_of(t, "--jitter"))
    loss, losses = _values("--loss", options.loss, lambda t: loss_of(t, "--loss"))
    mtu, mtus = _values("--mtu", options.mtu, _mtu)
    for place in mtus:
        if isinstance(place, tuple):
            raise ConfigurationError(
                f"--mtu {place[0]}-{place[1]}=: an MTU belongs to one host, not to a pair"
            )
    asked = bool(options.strict or options.delay or options.jitter or options.loss)
    paths = _paths(options.paths)
    long = any(dataclasses.replace(path, rate_bits=None) != Path() for path in paths)
    if options.no_netem and not (asked or mtus or long):
        raise ConfigurationError(
            "--no-netem applies to strict links only, and these are token buckets: add --strict, "
            "--delay, --jitter or --loss, or leave --no-netem out"
        )
    return {
        "rate_bits": None
        if options.rate is None
        else parse_option("--rate", parse_rate, options.rate),
        "queue_seconds": parse_option("--queue", parse_seconds, options.queue),
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
    """Separates ``VALUE`` for all hosts from ``HOST=VALUE`` and ``HOST-HOST=VALUE``.

    Returns:
      The value for all hosts, or None, and the values by host or pair of hosts.
    """
    whole: _Value | None = None
    places: dict[Where, _Value] = {}
    for text in texts:
        place, equals, value = text.rpartition("=")
        if not equals:
            if whole is not None:
                raise ConfigurationError(
                    f"{option} {text}: given twice for all hosts; write HOST={text} for one host"
                )
            whole = read(value)
            continue
        hosts = place.split("-")
        if len(hosts) > 2 or not all(map(_number, hosts)):
            raise ConfigurationError(
                f"{option} {text!r}: write one host or two before '=', as in 7={value} or 0-3="
                f"{value}"
            )
        numbers = tuple(sorted(map(int, hosts)))
        key: Where = (numbers[0], numbers[1]) if len(numbers) == 2 else numbers[0]
        if key in places:
            raise ConfigurationError(f"{option} {text}: given twice for {place}")
        places[key] = read(value)
    return whole, places


def _mtu(text: str) -> int:
    return parse_option("--mtu", parse_size, text)


def _slow(texts: Sequence[str]) -> dict[int, float]:
    rates: dict[int, float] = {}
    for text in texts:
        host, equals, rate = text.partition("=")
        if not equals or not _number(host):
            raise ConfigurationError(f"--slow {text!r}: write HOST=RATE, as in 2=100mbit")
        if int(host) in rates:
            raise ConfigurationError(f"--slow {text}: given twice for host {host}")
        rates[int(host)] = parse_option(f"--slow {text}", parse_rate, rate)
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
                f"--paths {part!r}: write 1 to {MAXIMUM_SPINES} times a rate, as in 4x50mbit"
            )
    return paths


def _path(text: str) -> Path:
    rate, long, rest = text.partition("@")
    way, lossy, loss = rest.partition("/")
    delay, jittery, jitter = way.partition("+")
    return Path(
        parse_option("--paths", parse_rate, rate),
        seconds_of(delay, "--paths: delay") if long else 0.0,
        seconds_of(jitter, "--paths: jitter") if jittery else 0.0,
        loss_of(loss, "--paths: loss") if lossy else 0.0,
    )


def _number(text: str) -> bool:
    return text.isascii() and text.isdecimal()
