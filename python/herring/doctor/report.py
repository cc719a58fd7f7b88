"""Prints an examination: the verdict, the findings, and tables of hosts and links; or as JSON."""

from __future__ import annotations

import re
import statistics
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from herring.base.units import counted, listed, numbers_text, show_duration, show_rate
from herring.doctor.curve import curve_document, curve_rows, curve_sentences
from herring.doctor.findings import SEVERITIES, Finding
from herring.doctor.judge import verdict
from herring.doctor.judge_hosts import usable_cores
from herring.doctor.judge_links import offsets, round_trips
from herring.doctor.judge_rates import capacities
from herring.doctor.records import Examination, Link
from herring.terminal.printing import aligned

_MOST_LINKS = 8  # in the table; the slowest ones
_WIDTH = 100
_STYLES = {"error": "bold red", "warning": "yellow", "note": "cyan"}


def lines(
    about: Examination, findings: Sequence[Finding], tables: bool = False
) -> Iterator[tuple[str, str]]:
    """Yields the lines of the report, each with its style for a terminal.

    Args:
        findings: The findings, in order.
        tables: Whether to print the tables if there is no error or warning, too.
    """
    counts = [(kind, sum(one.severity == kind for one in findings)) for kind in SEVERITIES]
    said = [counted(count, kind) for kind, count in counts if count]
    worst = verdict(list(findings))
    ranks = sum(len(host.ranks) for host in about.hosts)
    where = f"{counted(len(about.hosts), 'host')} with {counted(ranks, 'rank')}"
    result = listed(said) if said else "all is well"
    yield f"herring doctor: {result} ({where}, {about.seconds:.1f} s)", _STYLES.get(worst, "green")
    if summary := _summary(about):
        for line in textwrap.wrap(summary, _WIDTH):
            yield line, ""
    for one in findings:
        yield "", ""
        yield from _finding(one)
    if tables or worst in ("error", "warning"):
        yield "", ""
        yield from _styled(_host_rows(about))
        rows = _link_rows(about)
        if len(rows) > 1:
            yield "", ""
            yield from _styled(rows)
    if sentences := curve_sentences(about):
        yield "", ""
        yield from _styled(curve_rows(about))
        yield "", ""
        yield from ((line, "") for text in sentences for line in _folded(text, _WIDTH))


def to_json(about: Examination, findings: Sequence[Finding]) -> dict[str, Any]:
    """Returns the report as a document for JSON."""
    sends, receives = capacities(about)
    trips, clocks = round_trips(about), offsets(about) if about.hosts else {}
    return {
        "verdict": verdict(list(findings)),
        "findings": [vars(one) for one in findings],
        "seconds": about.seconds,
        "size": about.size,
        "launcher": about.source,
        "missing_ranks": sorted(about.missing),
        "not_measured": about.skipped,
        "hosts": [
            {
                "name": host.name,
                "hostname": host.hostname,
                "address": host.address,
                "ranks": [rank.number for rank in host.ranks],
                "cores": usable_cores(host),
                "ports": host.ports,
                "sends_bits_per_second": sends.get(index),
                "receives_bits_per_second": receives.get(index),
                "round_trip_seconds": trips.get(index),
                "clock_ahead_seconds": clocks[index][0] if index in clocks else None,
                "clock_error_seconds": clocks[index][1] if index in clocks else None,
                "settings": {str(rank.number): rank.settings for rank in host.ranks},
                "names": host.names,
                "facts": host.facts,
            }
            for index, host in enumerate(about.hosts)
        ],
        "links": [
            {
                "from": about.hosts[one].name,
                "to": about.hosts[other].name,
                "bits_per_second": link.rate,
                "measured_alone": link.alone,
                "round_trip_seconds": link.rtt,
                "largest_packet": link.largest or None,
                "largest_packet_tried": link.probed or None,
                "datagrams": link.sent,
                "datagrams_lost": link.lost,
                "sent_again": link.resent,
                "held_up_by_receive_buffer": link.limited,
                "ports": {str(port): why or "open" for port, why in link.ports.items()},
                **curve_document(link),
            }
            for (one, other), link in sorted(about.links.items())
        ],
    }


def _finding(one: Finding) -> Iterator[tuple[str, str]]:
    yield f"{one.severity:8} {one.subject}", _STYLES[one.severity]
    for label, text in (("", one.what), ("change", one.change), ("helps", one.helps)):
        if text:
            for number, line in enumerate(_folded(text, _WIDTH - 9)):
                yield f"{label if number == 0 else '':>8} {line}", ""


def _folded(text: str, width: int) -> list[str]:
    """Returns the lines of a text; a command in quotes stays in one line, to be copied."""
    whole = re.sub(r"(?<!\w)'[^']* [^']*'(?!\w)", lambda found: found[0].replace(" ", "\0"), text)
    found = textwrap.wrap(whole, width, break_long_words=False, break_on_hyphens=False)
    return [line.replace("\0", " ") for line in found]


def _summary(about: Examination) -> str:
    """Returns a sentence about links and GPUs, or an empty text if there are none."""
    parts = [*_links(about), *_gpus(about)]
    text = ", ".join(parts)
    return f"{text[0].upper()}{text[1:]}." if parts else ""


def _links(about: Examination) -> Iterator[str]:
    rates = [link.rate for link in about.links.values() if link.rate is not None]
    trips = [link.rtt for link in about.links.values() if link.rtt is not None]
    if not rates or not trips:
        return
    yield f"links carry {_between(min(rates), max(rates), show_rate)}"
    yield f"round trips take {_between(min(trips), max(trips), show_duration)}"
    if largest := [link.largest for link in about.links.values() if link.largest]:
        yield f"packets of {min(largest)} bytes arrive"
    clocks = [abs(ahead) for ahead, _ in offsets(about).values()]
    yield f"clocks differ by {show_duration(max(clocks))} at most"


def _gpus(about: Examination) -> Iterator[str]:
    devices = [
        device
        for host in about.hosts
        for device in host.facts.get("gpus", {}).get("devices", ())
        if "out" in device
    ]
    if devices:
        out, back = ([device[way] for device in devices] for way in ("out", "in"))
        yield (
            f"copies of {counted(len(devices), 'GPU')} reach "
            f"{_between(min(out), max(out), _per_second)} to host memory and "
            f"{_between(min(back), max(back), _per_second)} back"
        )


def _per_second(rate: float) -> str:
    return f"{rate / 1e9:.1f} GB/s"


def _between(least: float, most: float, show: Any) -> str:
    one, other = show(least), show(most)
    return one if one == other else f"{one} to {other}"


def _host_rows(about: Examination) -> list[list[str]]:
    sends, receives = capacities(about)
    trips, clocks = round_trips(about), offsets(about) if about.hosts else {}
    rows = [
        ["host", "address", "ranks", "cores", "MTU", "sends", "receives", "round trip", "clock"]
    ]
    for index, host in enumerate(about.hosts):
        rows.append(
            [
                host.name,
                host.address,
                numbers_text(rank.number for rank in host.ranks),
                f"{usable_cores(host):.3g}",
                str(host.facts.get("interface", {}).get("mtu", "-")),
                show_rate(sends[index]) if index in sends else "-",
                show_rate(receives[index]) if index in receives else "-",
                show_duration(trips[index]) if index in trips else "-",
                show_duration(clocks[index][0])
                if index in clocks and len(about.hosts) > 1
                else "-",
            ]
        )
    return rows


def _link_rows(about: Examination) -> list[list[str]]:
    """Returns the table of the slowest links, and of those that were not measured."""
    ordered = sorted(about.links.items(), key=lambda item: (item[1].rate or 0.0, item[0]))
    rows = [["slowest links", "carries", "round trip", "packet", "lost", "sent again"]]
    for (one, other), link in ordered[:_MOST_LINKS]:
        rows.append(
            [
                f"{about.hosts[one].name} -> {about.hosts[other].name}",
                show_rate(link.rate) if link.rate is not None else _why(link),
                show_duration(link.rtt) if link.rtt is not None else "-",
                str(link.largest) if link.largest else "-",
                f"{100 * link.lost / link.sent:.2g} %" if link.sent and link.largest else "-",
                f"{100 * link.resent:.2g} %" if link.rate is not None else "-",
            ]
        )
    typical = statistics.median([link.rate or 0.0 for _, link in ordered]) if ordered else 0.0
    if len(about.links) > _MOST_LINKS:
        count = f"{len(about.links)} links, half of them below"
        rows.append([count, show_rate(typical) if typical else "-", "", "", "", ""])
    return rows


def _why(link: Link) -> str:
    return "not measured" if link.open else "not reached"


def _styled(rows: Sequence[Sequence[str]]) -> Iterator[tuple[str, str]]:
    first, *others = aligned(rows)
    yield first, "bold"
    yield from ((line, "") for line in others)
