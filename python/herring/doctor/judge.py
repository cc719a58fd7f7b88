"""Judges an examination: the findings on the job, its hosts and their links, in order.

Everything here and in the modules that this one calls is a pure function of the examination.
"""

from __future__ import annotations

from collections.abc import Iterator

from herring.base.units import listed, ranks_text
from herring.doctor import judge_hosts, judge_links, judge_rates
from herring.doctor.findings import Finding, ordered
from herring.doctor.records import Examination


def judge(about: Examination) -> list[Finding]:
    """Returns all findings, the most important one first."""
    return ordered(
        [
            *_absent(about),
            *judge_hosts.judge(about),
            *judge_links.judge(about),
            *judge_rates.judge(about),
            *_skipped(about),
        ]
    )


def verdict(findings: list[Finding]) -> str:
    """Returns the worst severity, or ``ok``."""
    return findings[0].severity if findings else "ok"


def _absent(about: Examination) -> Iterator[Finding]:
    """Yields findings on ranks that did not come and hosts that fell silent."""
    by_host: dict[str, list[int]] = {}
    for rank, host in about.missing.items():
        by_host.setdefault(host, []).append(rank)
    where = about.hosts[0].address if about.hosts else "rank 0's host"
    for host, ranks in by_host.items():
        plural = len(ranks) > 1
        named = ranks_text(ranks)
        who = f"{named.capitalize()} of {about.size}"
        who += f" on {host}" if host else ""
        yield Finding(
            "error",
            host or named,
            f"{who} did not reach rank 0 at {where} in time.",
            f"Look at the output of {named}. If {'they wait' if plural else 'it waits'} for rank "
            "0, check the route and the firewall between the two hosts.",
            "A job waits for all of its ranks and does not start without them.",
            factor=1000.0,
        )
    for host, what, change in about.turned_away:
        yield Finding("error", host, what, change, "A job refuses such a process.", factor=950.0)
    for each in about.hosts:
        if each.lost_in:
            yield Finding(
                "error",
                each.name,
                f"The host stopped answering when it was asked for {each.lost_in}.",
                f"Look at the output of rank {each.ranks[0].number}, and at the load of the host.",
                "A host that falls silent ends a job.",
                factor=900.0,
            )


def _skipped(about: Examination) -> Iterator[Finding]:
    if about.skipped:
        yield Finding(
            "note",
            "job",
            f"The time was up before everything was measured: {listed(about.skipped, 8)}.",
            "Give more time with --time-limit.",
        )
