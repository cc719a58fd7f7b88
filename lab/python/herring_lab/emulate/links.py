"""Sets up the strict links of a cluster: the hosts' devices, and the switch's links.

The module ``strict`` has the switch itself. With n hosts, links 0 to n - 1 lead from the hosts to
the switch, and links n to 2n - 1 from its ports to the hosts. Two links for each spine follow, one
per direction.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence

from herring_lab.emulate.namespaces import ClusterError, run_batch, run_tool
from herring_lab.emulate.paths import Paths
from herring_lab.emulate.strict import LinkReport, Path, Switch, find_switch, host_address

_TAP_QUEUE = 4000  # packets that may wait for the switch while it is late
_LATE_SECONDS = 200e-6


class StrictLinks:
    """A running switch, and the hosts' devices that it has made.

    Args:
      spaces: the namespaces of the hosts, in order.
      home: the namespace in which the switch runs, so that it ends with the cluster.
      addresses: the addresses of the hosts.
      mtus: the MTUs of the hosts, in bytes.
      rates: the rates of the hosts' links, in bits per second; None: no limit.
      queue_seconds: the most time that a packet may wait in a queue.
      spines: the spines between the leaves of even and odd hosts; empty: all are on one switch.
      between: delay, jitter and loss between the hosts.
      seed: the seed of losses and jitter.

    Raises:
      ClusterError: the program is missing or fails; the message quotes what it printed.
    """

    def __init__(
        self,
        spaces: Sequence[str],
        home: str,
        addresses: Sequence[str],
        mtus: Sequence[int],
        rates: Sequence[float | None],
        queue_seconds: float,
        spines: Sequence[Path],
        between: Paths,
        seed: int,
    ) -> None:
        program = find_switch()
        if program is None:
            raise ClusterError(
                "strict links need the program herring_lab_switch, which is built and installed "
                "with the package: install it again ('make lab')"
            )
        self._spaces = list(spaces)
        self._overrun = 0
        late = _late_limit(max(mtus), rates, between)
        command = ["nsenter", f"--net=/run/netns/{home}", "setpriv", "--pdeathsig", "KILL"]
        self._switch = Switch([*command, str(program)], spaces, len(spines), seed, max(mtus), late)
        try:
            self.set_between(between)
            self.set_links(dict(enumerate(rates)), queue_seconds)
            for number, spine in enumerate(spines):
                self.set_spine(number, spine, queue_seconds)
            for host in range(len(spaces)):
                self._set_up(host, addresses, mtus[host])
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """The process id of the switch."""
        return self._switch.pid

    def tell(self, lines: Sequence[str]) -> None:
        """Sends lines of ``lab/src/switch/switch.h`` to the switch, and waits until they are done.

        Raises:
          ClusterError: a line could not be executed; the message quotes the switch.
        """
        self._switch.tell(lines)

    def set_links(self, rates: Mapping[int, float | None], queue_seconds: float) -> None:
        """Sets the rates of hosts' links in both directions, and the depth of their queues."""
        size = len(self._spaces)
        self.tell(
            [
                Switch.link_line(link, rate, queue_seconds)
                for host, rate in rates.items()
                for link in (host, size + host)
            ]
        )

    def set_spine(self, number: int, spine: Path, queue_seconds: float) -> None:
        """Sets rate, queue, delay, jitter and loss of a spine."""
        links = [self._spine_link(number, leaf) for leaf in (0, 1)]
        lines = [Switch.link_line(link, spine.rate_bits, queue_seconds) for link in links]
        self.tell([*lines, f"spine {number} {spine.words()}"])

    def set_between(self, between: Paths) -> None:
        """Sets delay, jitter and loss between hosts."""
        self.tell(between.lines())

    def port_drops(self, host: int) -> int:
        """Returns the number of packets that the switch's port to a host has dropped."""
        return self._switch.report()[1][len(self._spaces) + host][2]

    def spine_bytes(self, number: int) -> int:
        """Returns the bytes that a spine has carried in both directions together."""
        links = self._switch.report()[1]
        return sum(links[self._spine_link(number, leaf)][1] for leaf in (0, 1))

    def report(self, reset: bool = False) -> LinkReport:
        """Returns how well links kept to their model; with `reset` the next report begins now."""
        report, _ = self._switch.report(reset)
        overrun = -self._overrun
        for space in self._spaces:
            show = ["-s", "-j", "link", "show", "eth0"]
            link = json.loads(run_tool(["ip", "-n", space, *show]))[0]["stats64"]
            overrun += link["tx"]["dropped"]
        if reset:
            self._overrun += overrun
        return dataclasses.replace(report, overrun=overrun)

    def close(self) -> None:
        """Ends the switch and with it the hosts' devices. More calls have no effect."""
        self._switch.close()

    def _spine_link(self, number: int, leaf: int) -> int:
        return 2 * len(self._spaces) + 2 * number + leaf

    def _set_up(self, host: int, addresses: Sequence[str], mtu: int) -> None:
        commands = [
            "link set lo up",
            f"addr add {addresses[host]}/16 dev eth0",
            f"link set eth0 mtu {mtu} txqueuelen {_TAP_QUEUE} addrgenmode none up",
        ]
        # Addresses are set in advance, because ARP would add a round trip to a measurement.
        commands += [
            f"neigh add {address} lladdr {host_address(other)} dev eth0 nud permanent"
            for other, address in enumerate(addresses)
            if other != host
        ]
        run_batch(["ip", "-n", self._spaces[host], "-batch", "-"], commands)


def _late_limit(mtu: int, rates: Sequence[float | None], between: Paths) -> float:
    """Returns a fifth of the shortest way, but no less than some wake-ups take, in seconds."""
    limits = [rate for rate in rates if rate]
    packet = 2 * 8 * mtu / max(limits) if limits else 0.0
    return max(_LATE_SECONDS, 0.2 * (between.shortest + packet))
