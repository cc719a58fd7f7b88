"""Describes delay, jitter and loss between hosts: for all, for single hosts, and for pairs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Union

from herring.errors import ConfigurationError
from herring_lab.emulate.limits import Amount, loss_of, require_host, seconds_of
from herring_lab.emulate.strict import Path

#: One host (packets to and from this host) or two hosts (packets between these two).
Where = Union[int, "tuple[int, int]"]


@dataclasses.dataclass(frozen=True)
class Between:
    """Delay, jitter and loss between hosts, as a user gives them.

    Attributes:
      delay: one-way delay between any two hosts, in seconds or as text such as ``"500us"``.
      jitter: the longest random extra delay of a packet, in seconds or as text; packets do not
        overtake each other.
      loss: probability that a packet is lost, 0 to 1, or text such as ``"0.1%"``.
      delays, jitters, losses: other values by host (``{7: "10ms"}``: to and from host 7) or by pair
        (``{(0, 3): "10ms"}``). The value of a pair overrides those of its hosts; of the values of
        two hosts, the larger counts.
    """

    delay: Amount = 0.0
    jitter: Amount = 0.0
    loss: Amount = 0.0
    delays: Mapping[Where, Amount] | None = None
    jitters: Mapping[Where, Amount] | None = None
    losses: Mapping[Where, Amount] | None = None


class Paths:
    """Delay, jitter and loss of the path between any two hosts.

    Args:
      hosts: the number of hosts.
      given: the values that the user gave.

    Raises:
      ConfigurationError: a value is impossible, or a host does not exist; the error names it.
    """

    def __init__(self, hosts: int, given: Between) -> None:
        self._hosts = hosts
        self._all = Path(
            None,
            seconds_of(given.delay, "delay"),
            seconds_of(given.jitter, "jitter"),
            loss_of(given.loss),
        )
        self._delays = self._places(given.delays, "delay", seconds_of)
        self._jitters = self._places(given.jitters, "jitter", seconds_of)
        self._losses = self._places(given.losses, "loss", loss_of)

    def between(self, one: int, other: int) -> Path:
        """Returns the path between two hosts."""
        return Path(
            None,
            _pick(self._delays, one, other, self._all.delay),
            _pick(self._jitters, one, other, self._all.jitter),
            _pick(self._losses, one, other, self._all.loss),
        )

    @property
    def shortest(self) -> float:
        """The least delay between any two hosts, in seconds."""
        return min((self._all.delay, *self._delays.values()))

    @property
    def longest(self) -> float:
        """The greatest delay between any two hosts, jitter included, in seconds."""
        jitter = max((self._all.jitter, *self._jitters.values()))
        return max((self._all.delay, *self._delays.values())) + jitter

    @property
    def uniform(self) -> Path | None:
        """The path between any two hosts if all paths are equal; otherwise None."""
        special = self._delays or self._jitters or self._losses
        return None if special else self._all

    def lines(self) -> list[str]:
        """Returns the lines that tell the switch all paths (``lab/src/switch/switch.h``)."""
        lines = [f"path {self._all.words()}"]
        places = {*self._delays, *self._jitters, *self._losses}
        alone = {place for place in places if isinstance(place, int)}
        pairs = {pair for pair in places if isinstance(pair, tuple)}
        pairs |= {(one, other) for one in alone for other in range(self._hosts) if one != other}
        for one, other in sorted({tuple(sorted(pair)) for pair in pairs}):
            words = self.between(one, other).words()
            lines += [f"pair {one} {other} {words}", f"pair {other} {one} {words}"]
        return lines

    def _places(
        self,
        given: Mapping[Where, Amount] | None,
        what: str,
        read: Callable[[Amount, str], float],
    ) -> dict[Where, float]:
        found: dict[Where, float] = {}
        for place, value in (given or {}).items():
            hosts = place if isinstance(place, tuple) else (place,)
            if len(hosts) > 2:
                raise ConfigurationError(f"{what} between {place!r}: name one host or two")
            for host in hosts:
                require_host(host, self._hosts, f"{what}: ")
            if len(hosts) == 2 and hosts[0] == hosts[1]:
                raise ConfigurationError(
                    f"{what} between host {hosts[0]} and itself: name two different hosts"
                )
            key = (min(hosts), max(hosts)) if len(hosts) == 2 else hosts[0]
            found[key] = read(value, f"{what} of {'-'.join(map(str, hosts))}")
        return found


def _pick(given: Mapping[Where, float], one: int, other: int, default: float) -> float:
    pair = given.get((min(one, other), max(one, other)))
    if pair is not None:
        return pair
    return max((given[host] for host in (one, other) if host in given), default=default)
