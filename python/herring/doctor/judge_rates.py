"""Judges the rates of links: which host is the odd one, in which direction, and what it costs."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from herring.base.units import listed, show_duration, show_rate, show_size
from herring.doctor.findings import Finding, times
from herring.doctor.judge_links import far_hosts
from herring.doctor.pairs import MOST_ROUNDS
from herring.doctor.records import Examination, Host

_SLOW = 0.7  # of the typical rate
_SLOW_PAIR = 0.6  # of what both of its hosts reach with others
_BELOW_STATED = 0.7  # of what the interface states
_FASTEST_STATED = 25e9  # beyond, one connection is limited by a processor
_SMALL_BUFFER = 256 << 10
_HELD_UP = 0.3
_ROBUST_HOSTS = 5  # from which on the best link of a host may be a fluke


def measured(about: Examination) -> dict[tuple[int, int], float]:
    """Returns the rates of links; links that lose large packets have none worth judging."""
    return {
        pair: link.rate
        for pair, link in sorted(about.links.items())
        if link.rate is not None and not link.loses_large
    }


def capacities(about: Examination) -> tuple[dict[int, float], dict[int, float]]:
    """Returns the bits per second at which each host can send, and receive.

    A link is as slow as the slower of its two hosts, so the best links of a host show what the host
    can do. Among many hosts the second best one counts, because the best one may be a fluke.
    """
    sends: dict[int, list[float]] = {}
    receives: dict[int, list[float]] = {}
    for (one, other), rate in measured(about).items():
        sends.setdefault(one, []).append(rate)
        receives.setdefault(other, []).append(rate)
    place = 1 if len(about.hosts) >= _ROBUST_HOSTS else 0

    def best(rates: list[float]) -> float:
        return sorted(rates, reverse=True)[min(place, len(rates) - 1)]

    return (
        {host: best(rates) for host, rates in sorted(sends.items())},
        {host: best(rates) for host, rates in sorted(receives.items())},
    )


def typical_rate(about: Examination) -> float:
    """Returns the rate that most hosts reach, in bits per second; 0 if nothing was measured."""
    sends, receives = capacities(about)
    rates = [*sends.values(), *receives.values()]
    return statistics.median(rates) if rates else 0.0


def suspects(about: Examination) -> list[tuple[int, int]]:
    """Returns pairs of hosts to measure again alone, the most suspicious ones first.

    What is slow while all hosts measure may only be slow because they do.
    """
    sends, receives = capacities(about)
    typical = typical_rate(about)
    found: dict[tuple[int, int], float] = {}
    for host in sends:
        for rates, forward in ((sends, True), (receives, False)):
            if rates.get(host, typical) >= _SLOW * typical:
                continue
            others = [
                (rate, pair[1] if forward else pair[0])
                for pair, rate in measured(about).items()
                if pair[0 if forward else 1] == host
            ]
            for _, other in sorted(others, reverse=True)[:2]:
                found.setdefault((host, other), rates[host] / typical)
    for one, other in _slow_pairs(about):
        link = about.link(one, other)
        found.setdefault((one, other), (link.rate or 0.0) / typical)
    far, usual = far_hosts(about)
    for host, trip in far.items():
        other = min((index for index in range(len(about.hosts)) if index not in far), default=host)
        if other != host:
            found.setdefault((host, other), usual / trip)
    seen: set[frozenset[int]] = set()
    ordered = []
    for pair in sorted(found, key=lambda pair: found[pair]):
        if frozenset(pair) not in seen:
            seen.add(frozenset(pair))
            ordered.append(pair)
    return ordered


def is_slow(about: Examination, one: int, other: int) -> bool:
    """Returns whether a link is slower than most hosts, or than its two hosts with others."""
    rate = measured(about).get((one, other))
    if rate is None:
        return False
    return rate < _SLOW * typical_rate(about) or (one, other) in _slow_pairs(about)


def _slow_pairs(about: Examination) -> Iterator[tuple[int, int]]:
    """Yields pairs that are slower than both of their hosts are with others.

    Pairs of slow hosts are left out: their rates scatter.
    """
    sends, receives = capacities(about)
    limit = _SLOW * typical_rate(about)
    slow = {host for rates in (sends, receives) for host, rate in rates.items() if rate < limit}
    for (one, other), rate in measured(about).items():
        if not slow & {one, other} and rate < _SLOW_PAIR * min(sends[one], receives[other]):
            yield one, other


def judge(about: Examination) -> Iterator[Finding]:
    """Yields findings on rates and on the buffers that limit them."""
    sends, receives = capacities(about)
    typical = typical_rate(about)
    yield from _buffers(about, typical)
    if not typical:
        return
    if len(about.hosts) == 2:
        yield from _two(about)
    else:
        for host in sorted(sends):
            yield from _host(about, host, sends[host], receives.get(host, typical), typical)
        for one, other in _slow_pairs(about):
            yield _pair(about, one, other, min(sends[one], receives[other]))
    yield from _stated(about, typical)
    yield from _unmeasured(about)


def _unmeasured(about: Examination) -> Iterator[Finding]:
    """Yields a finding on links that can be opened and then failed, unless the time was up."""
    if len(about.hosts) > MOST_ROUNDS + 1:
        return  # not every pair had to be measured
    silent = {index for index, host in enumerate(about.hosts) if host.lost_in}
    tried = {pair for pair, link in about.links.items() if link.sent and link.open}
    failed = sorted(
        pair
        for pair in tried
        if about.links[pair].rate is None and not silent & set(pair) and not about.skipped
    )
    if failed:
        names = [f"{about.hosts[one].name} -> {about.hosts[other].name}" for one, other in failed]
        yield Finding(
            "warning",
            listed(names),
            "The rate could not be measured, although a connection can be opened.",
            "Look at the load of both hosts, and for a firewall that ends connections.",
        )


def _host(
    about: Examination, host: int, sends: float, receives: float, typical: float
) -> Iterator[Finding]:
    slow = [rate < _SLOW * typical for rate in (sends, receives)]
    if not any(slow):
        return
    one = about.hosts[host]
    if all(slow):
        what = f"The host sends {show_rate(sends)} and receives {show_rate(receives)}; the others "
        what += f"reach {show_rate(typical)} both ways."
    else:
        way, rate, fine = "sends", sends, receives
        if slow[1]:
            way, rate, fine = "receives", receives, sends
        back = "receives" if slow[0] else "sends"
        what = (
            f"The host {way} only {show_rate(rate)}; it {back} {show_rate(fine)}, and the others "
        )
        what += f"reach {show_rate(typical)} both ways."
    factor = typical / max(min(sends, receives), 1.0)
    held = slow[1] and _held_up(about, host) > _HELD_UP
    yield Finding(
        "warning",
        one.name,
        what,
        "Raise the receive buffer (net.ipv4.tcp_rmem) of the host." if held else _look_at(one),
        _costs(about, typical, min(sends, receives)),
        factor,
    )


def _pair(about: Examination, one: int, other: int, expected: float) -> Finding:
    rate = about.links[one, other].rate or 0.0
    names = f"{about.hosts[one].name} -> {about.hosts[other].name}"
    if not about.links[one, other].alone:
        return Finding(
            "note",
            names,
            f"{show_rate(rate)} flowed from {about.hosts[one].name} to {about.hosts[other].name} "
            "while all hosts measured, and there was no time to measure this link alone.",
        )
    return Finding(
        "warning",
        names,
        f"{show_rate(rate)} flow from {about.hosts[one].name} to {about.hosts[other].name}, "
        f"although both hosts reach {show_rate(expected)} with others.",
        "Look at what lies between these two only: a link between switches, or a hash that puts "
        "connections on a busy one (HERRING_FLOWS=4 spreads them).",
        _costs(about, expected, rate),
        expected / max(rate, 1.0),
    )


def _two(about: Examination) -> Iterator[Finding]:
    """Yields findings on two hosts, which can only be compared with the way back."""
    rates = measured(about)
    for (one, other), rate in sorted(rates.items()):
        back = rates.get((other, one), rate)
        if rate < _SLOW * back:
            names = [about.hosts[index].name for index in (one, other)]
            yield Finding(
                "warning",
                f"{names[0]} -> {names[1]}",
                f"{show_rate(rate)} flow from {names[0]} to {names[1]}, and {show_rate(back)} "
                "back.",
                f"Look at what {names[0]} sends with and what {names[1]} receives with (ethtool, "
                "'tc qdisc', other traffic). A third host would tell which of them it is.",
                _costs(about, back, rate),
                back / max(rate, 1.0),
            )


def _look_at(host: Host) -> str:
    interface = host.facts.get("interface", {})
    name = interface.get("name", "the interface")
    stated = interface.get("speed")
    says = f" {name} says that it runs at {show_rate(stated)}." if stated else ""
    return (
        f"Look at {name} of {host.name}, its cable and its switch port ('ethtool {name}', 'tc "
        f"qdisc show dev {name}'), and at what else the host sends and receives.{says}"
    )


def _costs(about: Examination, expected: float, rate: float) -> str:
    """Says what a slow link costs, because every average waits for it."""
    nodes = len(about.hosts)
    bits = 8 * about.gradients * 2 * (nodes - 1) / nodes
    now, then = bits / max(rate, 1.0), bits / expected
    return (
        f"Now an average of {show_size(about.gradients)} takes about {show_duration(now)} instead "
        f"of {show_duration(then)}, {times(now / then)} as long, because every step waits for this "
        "link."
    )


def _held_up(about: Examination, host: int) -> float:
    """Returns the share of the time in which the host's receive buffer held others up."""
    shares = [link.limited for pair, link in about.links.items() if pair[1] == host and link.rate]
    return statistics.median(shares) if shares else 0.0


def _buffers(about: Examination, typical: float) -> Iterator[Finding]:
    trips = [link.rtt for link in about.links.values() if link.rtt is not None]
    path = typical * max(trips, default=0.0) / 8
    needed = max(2 * path, _SMALL_BUFFER)
    for index, host in enumerate(about.hosts):
        for name, way in (("tcp_rmem", "receive"), ("tcp_wmem", "send")):
            found = host.facts.get("sysctl", {}).get(name)
            if not isinstance(found, list) or len(found) != 3 or found[2] >= needed:
                continue
            held = _held_up(about, index) if way == "receive" else 0.0
            why = f"; it held senders up in {100 * held:.0f} % of the time" if held > 0.1 else ""
            helps = f"At {show_rate(typical)} a connection on the longest path needs "
            helps += f"{show_size(2 * path)}."
            factor = max(1.0, 2 * path / found[2], 1 / max(1 - held, 0.05))
            yield Finding(
                "warning",
                host.name,
                f"The {way} buffer of a connection grows to {show_size(found[2])} at most "
                f"(net.ipv4.{name}){why}.",
                f"Raise it: sysctl -w net.ipv4.{name}='4096 131072 {_advised(needed)}'.",
                helps if typical and path else "Connections need some hundred kB.",
                factor,
            )


def _advised(needed: float) -> int:
    """Returns the buffer to set: what most distributions set, or more where a path needs it."""
    size = 6 << 20
    while size < 2 * needed:
        size *= 2
    return size


def _stated(about: Examination, typical: float) -> Iterator[Finding]:
    """Yields a finding if all links are slower than their interfaces state."""
    speeds = [
        speed for host in about.hosts if (speed := host.facts.get("interface", {}).get("speed"))
    ]
    if len(speeds) < len(about.hosts):
        return
    stated = statistics.median_low(sorted(speeds))
    if stated <= _FASTEST_STATED and typical < _BELOW_STATED * stated:
        yield Finding(
            "warning",
            "job",
            f"Links carry {show_rate(typical)}, and their interfaces state {show_rate(stated)}.",
            "Look for other traffic, for a limit of the cloud's instance type, and for a switch "
            "that has less than its ports together. Busy processors slow links down, too.",
            _costs(about, stated, typical),
            stated / typical,
        )
