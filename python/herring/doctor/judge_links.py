"""Judges connections between hosts: ports, names, clocks, packet sizes, losses, round trips."""

from __future__ import annotations

import dataclasses
import ipaddress
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

from herring.base.units import listed, ranks_text, show_duration
from herring.doctor.findings import Finding, times
from herring.doctor.records import Examination, Host, Link

_MOST = 0.75  # of a host's links that must be bad before the host is blamed
_LOSS = 0.005
_LEAST_LOST = 3
_FAR = 3.0
_FAR_SECONDS = 0.5e-3
_CLOCK_NOTE = 0.1
_CLOCK_WARNING = 2.0
_MUNGE_SECONDS = 240.0  # MUNGE's credentials are valid for 300 s
_DRIFT = 500e-6  # more than NTP corrects
_SLOW_NAMES = 1.0


@dataclasses.dataclass(frozen=True)
class Blame:
    """Who is to blame for bad links."""

    host: int | None  # the host, or None if all links are bad
    way: str  # ``to`` or ``from`` the host, or ``both``; ``pair`` for a single link
    other: int | None  # the host at the other end, of a single link
    links: frozenset[tuple[int, int]]  # the bad links that this explains


def blame(bad: Set[tuple[int, int]], tested: Set[tuple[int, int]]) -> list[Blame]:
    """Finds the hosts that explain bad links: hosts most of whose links are bad.

    Args:
        bad: Pairs of sender and receiver.
        tested: All pairs that were tested; `bad` is a part of them.

    Returns:
        The hosts first, and then the pairs that no host explains.
    """
    left, found = set(bad), []
    hosts = {host for pair in tested for host in pair}
    if len(hosts) > 2 and left and left == set(tested):
        return [Blame(None, "both", None, frozenset(left))]
    while left and len(hosts) > 2:
        best: Blame | None = None
        for host in sorted(hosts):
            for way in ("both", "to", "from"):
                own = {pair for pair in tested if _touches(pair, host, way)}
                explained = own & left
                halves = ("to", "from") if way == "both" else (way,)
                alike = all(
                    len({p for p in explained if _touches(p, host, half)})
                    >= _MOST * len({p for p in own if _touches(p, host, half)})
                    for half in halves
                )
                if (
                    alike
                    and len(explained) > 1
                    and len(explained) > len(best.links if best else ())
                ):
                    best = Blame(host, way, None, frozenset(explained))
        if best is None:
            break
        found.append(best)
        left -= best.links
    return found + [
        Blame(one, "pair", other, frozenset({(one, other)})) for one, other in sorted(left)
    ]


def _touches(pair: tuple[int, int], host: int, way: str) -> bool:
    return (way != "from" and pair[1] == host) or (way != "to" and pair[0] == host)


def judge(about: Examination) -> Iterator[Finding]:
    """Yields findings on connections."""
    yield from _ports(about)
    yield from _names(about)
    yield from _clocks(about)
    yield from _mtus(about)
    yield from _paths(about)
    yield from _losses(about)
    yield from _far(about)


def subject_of(about: Examination, one: Blame) -> str:
    """Returns how a finding names whom it is about."""
    if one.host is None:
        return "job"
    name = about.hosts[one.host].name
    return name if one.other is None else f"{name} -> {about.hosts[one.other].name}"


def _ports(about: Examination) -> Iterator[Finding]:
    for host in about.hosts:
        if host.failure:
            yield Finding(
                "error",
                host.name,
                f"The host cannot listen: {host.failure}.",
                "Free ports of the range, or choose a wider one (HERRING_PORTS).",
                "A worker or server that finds no port fails at the start.",
                factor=800.0,
            )
    tested = {pair for pair, link in about.links.items() if link.ports}
    bad = {pair for pair in tested if any(about.links[pair].ports.values())}
    for one in blame(bad, tested):
        reasons = Counter(
            why for pair in one.links for why in about.links[pair].ports.values() if why
        )
        ports = sorted(
            {port for p in one.links for port, why in about.links[p].ports.items() if why}
        )
        reason = reasons.most_common(1)[0][0]
        where = ranks_text(ports, "TCP port")
        targets = sorted({pair[1] for pair in one.links})
        sources = sorted({pair[0] for pair in one.links})
        if one.way in ("to", "pair"):
            what = f"{where} of {about.hosts[targets[0]].name} cannot be reached from "
            what += listed([about.hosts[index].name for index in sources])
        elif one.way == "from":
            what = f"{about.hosts[sources[0]].name} cannot reach {where} of "
            what += listed([about.hosts[index].name for index in targets])
        else:
            who = "No host" if one.host is None else f"{about.hosts[one.host].name} and other hosts"
            what = (
                f"{who} can reach the others" if one.host is None else f"{who} cannot reach each "
            )
            what += f" at {where}" if one.host is None else f"other at {where}"
        # Where all of a host's ports are closed, its address may be the wrong one.
        interface = "" if about.port_range else " Or choose another network with HERRING_INTERFACE."
        yield Finding(
            "error",
            subject_of(about, one),
            f"{what}: {reason}.",
            f"{_advice(reason, about, [about.hosts[index] for index in targets])}{interface}",
            "A worker that cannot connect to a server waits until HERRING_CONNECT_TIMEOUT, and the "
            "job fails.",
            factor=800.0,
        )


def _advice(reason: str, about: Examination, targets: list[Host]) -> str:
    if "route" in reason.lower() or "unreachable" in reason.lower():
        return "Correct the route (ip route get ADDRESS on the host that connects)."
    names = listed([host.name for host in targets])
    ports = about.port_range.replace("-", ":") if about.port_range else "1024:65535"
    return (
        f"Let TCP in on {names}, for example with 'iptables -A INPUT -p tcp --dport {ports} -j "
        f"ACCEPT'{'' if about.port_range else ', or set HERRING_PORTS and open that range'}."
    )


def _names(about: Examination) -> Iterator[Finding]:
    slow = {host.name: [n for n, one in host.names.items() if one["seconds"] > _SLOW_NAMES]
            for host in about.hosts}  # fmt: skip
    for target in _targets(about):
        resolving = {
            h.name: h.names[target.hostname] for h in about.hosts if target.hostname in h.names
        }
        others = {name: one for name, one in resolving.items() if name != target.name}
        if not any(one["addresses"] for one in others.values()):
            continue  # nobody needs this name
        needed = target.hostname == about.rendezvous
        right = set(target.facts.get("addresses", ())) | {target.address}
        for name, one in others.items():
            if one["addresses"] and right & set(one["addresses"]):
                continue
            if not one["addresses"]:
                what = (
                    f"The name {target.hostname} does not resolve on {name} ({one['error']}); on "
                )
                what += f"other hosts it means {target.address}."
            else:
                what = (
                    f"On {name} the name {target.hostname} means {listed(one['addresses'])}, which "
                )
                what += f"is not an address of {target.name} ({target.address})."
            yield Finding(
                "error" if needed else "warning",
                name,
                what,
                f"Correct /etc/hosts or the name server on {name}.",
                "Launchers, ssh and torch's store find hosts by their names.",
                factor=600.0 if needed else 1.0,
            )
    for name, names in slow.items():
        if names:
            yield Finding(
                "note",
                name,
                f"Looking up {listed(names)} takes more than {_SLOW_NAMES:g} s.",
                "Look at the name servers in /etc/resolv.conf.",
                "The start of a job waits for it.",
            )


def _targets(about: Examination) -> Iterator[Host]:
    """Yields hosts whose name no other host has, and whose name is not that of loopback."""
    counts = Counter(host.hostname for host in about.hosts)
    for host in about.hosts:
        if counts[host.hostname] == 1 and host.hostname != "localhost" and not _is_loopback(host):
            yield host


def _is_loopback(host: Host) -> bool:
    return ipaddress.ip_address(host.address.partition("%")[0]).is_loopback


def offsets(about: Examination) -> dict[int, tuple[float, float]]:
    """Returns by how many seconds each clock is ahead of most clocks, and how wrong that may be."""
    found = {0: (0.0, 0.0)}
    for index in range(1, len(about.hosts)):
        link = about.links.get((index, 0), Link())
        if link.offset is not None:
            found[index] = (-link.offset, link.offset_error)
    order = sorted(found, key=lambda index: found[index][0])
    middle = order[(len(order) - 1) // 2]
    base, doubt = found[middle]
    return {
        index: (ahead - base, 0.0 if index == middle else error + doubt)
        for index, (ahead, error) in found.items()
    }


def _clocks(about: Examination) -> Iterator[Finding]:
    if len(about.hosts) < 2:
        return
    compared = offsets(about)
    for index, (ahead, error) in compared.items():
        if abs(ahead) - error < _CLOCK_NOTE:
            continue
        severity = "warning" if abs(ahead) > _CLOCK_WARNING else "note"
        helps = "Lines of the hosts' logs cannot be put in order."
        if about.by_munge and abs(ahead) > _MUNGE_SECONDS:
            severity, helps = "error", "MUNGE refuses credentials that are older than 5 minutes."
        own, within = about.hosts[index].name, f"(to within {show_duration(error)})"
        side = "ahead of" if ahead > 0 else "behind"
        subject = own
        what = f"The clock is {show_duration(abs(ahead))} {side} those of the other hosts {within}."
        change = "Start chrony or ntpd on the host."
        if len(compared) == 2:  # each could be the wrong one
            [other] = (about.hosts[each].name for each in compared if each != index)
            subject = " <-> ".join(about.hosts[each].name for each in sorted(compared))
            what = f"The clock of {own} is {show_duration(abs(ahead))} {side} that of {other} "
            what += f"{within}. One of the two is wrong, or both are."
            change = "Start chrony or ntpd on both hosts."
        yield Finding(severity, subject, what, change, helps)
    for index, host in enumerate(about.hosts):
        link = about.links.get((index, 0), Link())
        if host.late_clock is None or link.offset is None or host.clock_seconds < 1.0:
            continue
        drift = (link.offset - host.late_clock) / host.clock_seconds
        if abs(drift) - 4 * link.offset_error / host.clock_seconds > _DRIFT:
            yield Finding(
                "note",
                host.name,
                f"The clock gains {1e6 * drift:.0f} us a second on that of {about.hosts[0].name}.",
                "Look at chrony or ntpd on both hosts; a virtual machine may need another clock "
                "source.",
                "Lines of the hosts' logs cannot be put in order.",
            )


def _mtus(about: Examination) -> Iterator[Finding]:
    mtus = {
        host.name: int(host.facts["interface"]["mtu"])
        for host in about.hosts
        if host.facts.get("interface", {}).get("mtu")
    }
    counts = Counter(mtus.values())
    if len(counts) < 2:
        return
    usual = max(counts, key=lambda mtu: (counts[mtu], mtu))
    for host in about.hosts:
        own = mtus.get(host.name, usual)
        if own != usual:
            name = host.facts["interface"]["name"]
            yield Finding(
                "warning",
                host.name,
                f"The interface {name} has an MTU of {own}, and the others have {usual}.",
                f"Set it on {host.name}: 'ip link set {name} mtu {usual}'. The switch must carry "
                "packets of this size, too.",
                f"Data travel in {times(max(own, usual) / min(own, usual))} as many packets, which "
                "costs processor time, and large datagrams between the hosts are lost.",
            )


def _paths(about: Examination) -> Iterator[Finding]:
    tested = {pair for pair, link in about.links.items() if link.probed and link.largest}
    bad = {pair for pair in tested if about.links[pair].loses_large}
    for one in blame(bad, tested):
        largest = min(about.links[pair].largest for pair in one.links)
        tried = min(about.links[pair].probed for pair in one.links)
        if one.host is None:
            between = "between any two hosts"
        elif one.other is not None:
            between = f"from {about.hosts[one.host].name} to {about.hosts[one.other].name}"
        else:
            between = {"both": "to and from", "to": "to", "from": "from"}[one.way]
            between += f" {about.hosts[one.host].name}"
        yield Finding(
            "error",
            subject_of(about, one),
            f"Packets of {tried} bytes get lost {between}, although the interfaces take them; "
            f"packets of {largest} bytes arrive.",
            f"Raise the MTU of the switch ports on the way to at least {tried}, or set that of the "
            f"hosts to {largest} ('ip link set INTERFACE mtu {largest}').",
            "Connections open and then hang as soon as they carry data.",
            factor=750.0,
        )
    silent = [p for p, link in about.links.items() if link.sent and not link.largest and link.open]
    if silent:
        some = "between some hosts" if tested else "between the hosts"
        yield Finding(
            "note",
            "job",
            f"Datagrams (UDP) do not pass {some}, so packet sizes and losses were not measured.",
            "Herring does not need UDP. Let it in for the time of the examination to have both "
            "measured.",
        )


def _losses(about: Examination) -> Iterator[Finding]:
    left = _answered(about)
    shares = [_rate(_of(left, index)) for index in {host for pair in left for host in pair}]
    if len(shares) > 2 and min(shares) >= _LOSS and max(shares) < 2 * min(shares):
        yield _loss("job", list(left.values()))
        return
    for worst in lossy_hosts(about):
        subject = about.hosts[worst].name
        if len(about.hosts) == 2:
            subject = " <-> ".join(host.name for host in about.hosts)
        yield _loss(subject, _of(left, worst))
        left = {pair: link for pair, link in left.items() if worst not in pair}


def lossy_hosts(about: Examination) -> list[int]:
    """Returns the hosts that lose small packets, without those that only talk to such hosts."""
    left, found = _answered(about), []
    while left:
        hosts = sorted({host for pair in left for host in pair})
        worst = max(hosts, key=lambda index: _rate(_of(left, index)))
        own = _of(left, worst)
        if _rate(own) < _LOSS or sum(link.lost for link in own) < _LEAST_LOST:
            break
        found.append(worst)
        left = {pair: link for pair, link in left.items() if worst not in pair}
    return found


def _answered(about: Examination) -> dict[tuple[int, int], Link]:
    """Returns the links on which datagrams were answered at all."""
    return {pair: link for pair, link in about.links.items() if link.sent and link.largest}


def _of(links: Mapping[tuple[int, int], Link], host: int) -> list[Link]:
    return [link for pair, link in links.items() if host in pair]


def _rate(links: Iterable[Link]) -> float:
    counts = [(link.lost, link.sent) for link in links]
    return sum(lost for lost, _ in counts) / max(sum(sent for _, sent in counts), 1)


def _loss(subject: str, links: Sequence[Link]) -> Finding:
    lost, sent = sum(link.lost for link in links), sum(link.sent for link in links)
    return Finding(
        "warning",
        subject,
        f"Of {sent} small packets and their answers {lost} were lost ({100 * lost / sent:.2g} %).",
        "Look for errors of the interface and its switch port ('ethtool -S', 'ip -s link'): a "
        "cable, a transceiver, or an overrun queue.",
        "With 1 lost packet in 1000, an average takes about 1.2 times as long.",
        1.2,
    )


def round_trips(about: Examination) -> dict[int, float]:
    """Returns the typical round trip of each host, in seconds."""
    found: dict[int, list[float]] = {}
    for (one, other), link in about.links.items():
        if link.rtt is not None:
            for host in (one, other):
                found.setdefault(host, []).append(link.rtt)
    return {host: statistics.median_low(sorted(trips)) for host, trips in sorted(found.items())}


def far_hosts(about: Examination) -> tuple[dict[int, float], float]:
    """Returns the round trips of hosts that are farther away than the others, and the usual one."""
    trips = round_trips(about)
    if len(trips) < 3:
        return {}, 0.0
    usual = statistics.median_low(sorted(trips.values()))
    limit = max(_FAR * usual, usual + _FAR_SECONDS)
    return {host: trip for host, trip in trips.items() if trip > limit}, usual


def _far(about: Examination) -> Iterator[Finding]:
    far, usual = far_hosts(about)
    for host, trip in far.items():
        yield Finding(
            "warning",
            about.hosts[host].name,
            f"A round trip to the host takes {show_duration(trip)}, and {show_duration(usual)} "
            "between the others.",
            "Use a host of the same rack or site, or look for a detour ('tracepath') and for power "
            "saving of the interface.",
            f"Every average takes at least {show_duration(2 * (trip - usual))} longer.",
            1.1,
        )
