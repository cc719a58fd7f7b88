"""What the doctor knows of a job's hosts and links after it has examined them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any


@dataclasses.dataclass
class Rank:
    """A rank of the job.

    Attributes:
        number: The rank.
        settings: The settings that differ from their defaults, by variable.
        cores: The processors that the rank may use, by number.
        problem: Why no job would start with the rank's settings; empty if one would.
        warnings: Variables that look like settings and are none.
    """

    number: int
    settings: dict[str, str] = dataclasses.field(default_factory=dict)
    cores: frozenset[int] = frozenset()
    problem: str = ""
    warnings: tuple[str, ...] = ()


@dataclasses.dataclass
class Host:
    """A host of the job.

    Attributes:
        name: How the report names the host; no other host has this name.
        hostname: The name that the host gives itself.
        address: The address by which the other hosts reach the host.
        ranks: The ranks on the host; the first one examines it.
        facts: What `herring.doctor.facts.gather` found; empty if the host did not answer.
        ports: The ports on which the host listened for the other hosts.
        failure: Why the host could not listen; empty if it could.
        names: What each name resolves to on this host: ``addresses``, ``seconds`` and ``error``.
        lost_in: The examination during which the host stopped answering; empty if it did not.
        late_clock: The offset of the clock at the end of the examination, or None.
        clock_seconds: The seconds between the first and the last look at the clock.
    """

    name: str
    hostname: str
    address: str
    ranks: list[Rank]
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)
    ports: list[int] = dataclasses.field(default_factory=list)
    failure: str = ""
    names: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    lost_in: str = ""
    late_clock: float | None = None
    clock_seconds: float = 0.0


@dataclasses.dataclass
class Link:
    """What was measured from one host to another.

    Attributes:
        ports: Why the port of the other host cannot be reached; empty texts for those that can.
        rtt: The shortest round trip, in seconds; None if it was not measured.
        offset: The seconds by which the other host's clock is ahead, at the shortest round trip.
        offset_error: The most by which `offset` can be wrong, in seconds.
        rate: Bits per second that arrived at the other host; None if it was not measured.
        alone: Whether `rate` was measured again while no other link was busy.
        resent: The share of segments that TCP sent again.
        limited: The share of the time in which the receiver's buffer held the sender up.
        probed: Bytes of the largest packet that was tried, or 0.
        largest: Bytes of the largest packet that arrived, or 0.
        sent: The number of small datagrams that were sent and should have been answered.
        lost: How many of them were not answered.
        curve: Bytes of messages and the seconds that they took one way; empty unless asked for.
    """

    ports: dict[int, str] = dataclasses.field(default_factory=dict)
    rtt: float | None = None
    offset: float | None = None
    offset_error: float = 0.0
    rate: float | None = None
    alone: bool = False
    resent: float = 0.0
    limited: float = 0.0
    probed: int = 0
    largest: int = 0
    sent: int = 0
    lost: int = 0
    curve: list[tuple[int, float]] = dataclasses.field(default_factory=list)

    @property
    def loses_large(self) -> bool:
        """Whether large packets get lost and small ones do not."""
        return 0 < self.largest < self.probed

    @property
    def open(self) -> bool:
        """Whether a port of the other host can be reached."""
        return any(not reason for reason in self.ports.values())


@dataclasses.dataclass
class Examination:
    """All of what the doctor found out.

    Attributes:
        size: The number of ranks of the job.
        hosts: The hosts, in the order of their first ranks.
        links: What was measured from one host to another, by their indices.
        missing: The ranks that did not come, with the name of the host where it is known.
        turned_away: Host name, sentence and advice for each process that could not take part.
        source: The launcher, as `herring.rendezvous.detect` names it.
        rendezvous: The host of the rendezvous as it was given; empty if there is none.
        by_munge: Whether the secret travels by MUNGE.
        port_range: The value of HERRING_PORTS; empty if it is not set.
        skipped: What was not measured because the time was up.
        gradients: Bytes of the gradients in the report's examples.
        seconds: How long the examination took.
    """

    size: int
    hosts: list[Host]
    links: dict[tuple[int, int], Link] = dataclasses.field(default_factory=dict)
    missing: dict[int, str] = dataclasses.field(default_factory=dict)
    turned_away: list[tuple[str, str, str]] = dataclasses.field(default_factory=list)
    source: str = "herring"
    rendezvous: str = ""
    by_munge: bool = False
    port_range: str = ""
    skipped: list[str] = dataclasses.field(default_factory=list)
    gradients: int = 100_000_000
    seconds: float = 0.0

    def link(self, source: int, target: int) -> Link:
        """Returns the record of a link, which is made if there is none."""
        return self.links.setdefault((source, target), Link())

    def pairs(self) -> Iterator[tuple[int, int]]:
        """Yields all ordered pairs of hosts."""
        for one in range(len(self.hosts)):
            for other in range(len(self.hosts)):
                if one != other:
                    yield one, other
