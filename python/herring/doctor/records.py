"""What the doctor knows of a job's hosts and links after it has examined them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any


@dataclasses.dataclass
class Rank:
    """A rank of the job."""

    number: int  # the rank
    # The settings that differ from their defaults, by variable.
    settings: dict[str, str] = dataclasses.field(default_factory=dict)
    cores: frozenset[int] = frozenset()  # the processors that the rank may use, by number
    problem: str = ""  # why no job would start with the rank's settings; empty if one would
    warnings: tuple[str, ...] = ()  # variables that look like settings and are none


@dataclasses.dataclass
class Host:
    """A host of the job."""

    name: str  # how the report names the host; no other host has this name
    hostname: str  # the name that the host gives itself
    address: str  # the address by which the other hosts reach the host
    ranks: list[Rank]  # the ranks on the host; the first one examines it
    # What `herring.doctor.facts.gather` found; empty if the host did not answer.
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)
    # The ports on which the host listened for the other hosts.
    ports: list[int] = dataclasses.field(default_factory=list)
    failure: str = ""  # why the host could not listen; empty if it could
    # What each name resolves to on this host: ``addresses``, ``seconds`` and ``error``.
    names: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    # The examination during which the host stopped answering; empty if it did not.
    lost_in: str = ""
    # The offset of the clock at the end of the examination, or None.
    late_clock: float | None = None
    clock_seconds: float = 0.0  # the seconds between the first and the last look at the clock


@dataclasses.dataclass
class Link:
    """What was measured from one host to another."""

    # Why the port of the other host cannot be reached; empty texts for those that can.
    ports: dict[int, str] = dataclasses.field(default_factory=dict)
    rtt: float | None = None  # the shortest round trip, in seconds; None if it was not measured
    # The seconds by which the other host's clock is ahead, at the shortest round trip.
    offset: float | None = None
    offset_error: float = 0.0  # the most by which `offset` can be wrong, in seconds
    # Bits per second that arrived at the other host; None if it was not measured.
    rate: float | None = None
    alone: bool = False  # whether `rate` was measured again while no other link was busy
    resent: float = 0.0  # the share of segments that TCP sent again
    limited: float = 0.0  # the share of the time in which the receiver's buffer held the sender up
    probed: int = 0  # bytes of the largest packet that was tried, or 0
    largest: int = 0  # bytes of the largest packet that arrived, or 0
    sent: int = 0  # the number of small datagrams that were sent and should have been answered
    lost: int = 0  # how many of them were not answered
    # Bytes of messages and the seconds that they took one way; empty unless asked for.
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
    """All of what the doctor found out."""

    size: int  # the number of ranks of the job
    hosts: list[Host]  # the hosts, in the order of their first ranks
    # What was measured from one host to another, by their indices.
    links: dict[tuple[int, int], Link] = dataclasses.field(default_factory=dict)
    # The ranks that did not come, with the name of the host where it is known.
    missing: dict[int, str] = dataclasses.field(default_factory=dict)
    # Host name, sentence and advice for each process that could not take part.
    turned_away: list[tuple[str, str, str]] = dataclasses.field(default_factory=list)
    source: str = "herring"  # the launcher, as `herring.rendezvous.detect` names it
    rendezvous: str = ""  # the host of the rendezvous as it was given; empty if there is none
    by_munge: bool = False  # whether the secret travels by MUNGE
    port_range: str = ""  # the value of HERRING_PORTS; empty if it is not set
    # What was not measured because the time was up.
    skipped: list[str] = dataclasses.field(default_factory=list)
    gradients: int = 100_000_000  # bytes of the gradients in the report's examples
    seconds: float = 0.0  # how long the examination took

    def link(self, source: int, target: int) -> Link:
        """Returns the record of a link, which is made if there is none."""
        return self.links.setdefault((source, target), Link())

    def pairs(self) -> Iterator[tuple[int, int]]:
        """Yields all ordered pairs of hosts."""
        for one in range(len(self.hosts)):
            for other in range(len(self.hosts)):
                if one != other:
                    yield one, other
