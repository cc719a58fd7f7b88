"""Rank 0's part of the doctor: gathers the ranks, and examines all hosts at the same time."""

from __future__ import annotations

import itertools
import queue
import socket
import sys
import time
from collections.abc import Iterable, Mapping
from typing import Any

from herring.base.reminders import Reminders
from herring.base.units import in_seconds, ranks_text
from herring.doctor.agent import VERSION
from herring.doctor.curve import MOST_SECONDS
from herring.doctor.judge_links import lossy_hosts
from herring.doctor.judge_rates import is_slow, suspects
from herring.doctor.pairs import rounds_of, sample_of
from herring.doctor.records import Examination, Host, Rank
from herring.rendezvous.channel import DOCTOR, Channel, Listener
from herring.terminal.command_line import log_line

_CONNECT_SECONDS = 3.0
_NAME_SECONDS = 4.0
_PINGS = 20
_PING_SECONDS = 0.1
_DATAGRAMS = 40
_MORE_DATAGRAMS = 100
_MOST_LOSSY = 3  # hosts whose losses are measured again
_MOST_PORTS = 8  # tried on each host
_RACE_SECONDS = (0.2, 0.5)
_ALL_RACES = 4.0  # seconds that all rounds should take together
_LONGEST_RACE = 2.0
_ROUND_TRIPS = 10  # that a race lasts at least
_MOST_AGAIN = 4
_AGAIN_SECONDS = 0.35
_ATTEMPTS = 3
_FASTER = 1.1
_CURVE_ROUNDS = 3  # with up to four hosts, every pair
_SLACK = 5.0  # seconds that a host may be late with an answer


class Hub:
    """Asks all hosts, and keeps what they answer."""

    def __init__(
        self, listener: socket.socket, secret: bytes, size: int, deadline: float, about: Examination
    ) -> None:
        """Starts to accept ranks; all must be over at `deadline` (`time.monotonic`)."""
        self.about = about
        self._size = size
        self._deadline = deadline
        self._came: queue.SimpleQueue[tuple[Channel, dict[str, Any]]] = queue.SimpleQueue()
        self._listener = Listener([listener], secret, DOCTOR, self._welcome)
        self._channels: dict[int, Channel] = {}  # by the index of the host
        self._numbers = itertools.count(1)
        self._datagrams: dict[int, int] = {}
        self._first_clocks: dict[int, tuple[float, float]] = {}

    def close(self) -> None:
        """Ends the examination on all hosts."""
        for channel in self._channels.values():
            try:
                channel.send({"do": "end"}, 1.0)
                channel.close()
            except OSError:
                pass
        self._channels.clear()
        self._listener.close()

    def gather(self, seconds: float, names: Mapping[int, str]) -> None:
        """Waits until all ranks have come, or the time is over.

        Args:
            seconds: How long to wait.
            names: The name of the host of each rank, as far as the launcher told it.
        """
        end = time.monotonic() + seconds
        came: dict[int, tuple[Channel, dict[str, Any]]] = {}
        start = time.monotonic()
        reminders = Reminders(start)
        while len(came) < self._size:
            try:
                wait = min(end, reminders.next) - time.monotonic()
                channel, hello = self._came.get(timeout=max(wait, 0.01))
            except queue.Empty:
                now = time.monotonic()
                if now >= end:
                    break
                if not reminders.due(now):
                    continue
                absent = set(range(self._size)) - came.keys()
                waited = in_seconds(now - start)
                text = f"rank 0 has waited {waited} for {ranks_text(absent)}"
                sys.stderr.write(log_line("warning", "herring doctor", text))
                continue
            if reason := self._refusal(hello, came):
                self.about.turned_away.append((hello["hostname"], *reason))
                self._tell(channel, {"refused": " ".join(reason)})
                channel.close()
                continue
            came[hello["rank"]] = (channel, hello)
        self.about.missing = {
            rank: names.get(rank, "") for rank in range(self._size) if rank not in came
        }
        by_host: dict[str, list[int]] = {}
        for rank in sorted(came):
            by_host.setdefault(came[rank][1]["host"], []).append(rank)
        hellos = [came[ranks[0]][1] for ranks in by_host.values()]
        for index, (ranks, name) in enumerate(zip(by_host.values(), _names(hellos))):
            about = hellos[index]
            members = [_rank(came[rank][1]) for rank in ranks]
            self.about.hosts.append(Host(name, about["hostname"], about["address"], members))
            for rank in ranks:
                channel = came[rank][0]
                self._tell(channel, {"examine": rank == ranks[0]})
                if rank == ranks[0]:
                    self._channels[index] = channel
                else:
                    channel.close()

    def _refusal(self, hello: Mapping[str, Any], came: Mapping[int, Any]) -> tuple[str, str] | None:
        """Returns why a process cannot take part and what to change, or None if it can."""
        rank = hello["rank"]
        if hello["doctor"] != VERSION:
            return (
                f"The doctor of rank {rank} speaks version {hello['doctor']}, and that of rank 0 "
                f"speaks version {VERSION}.",
                "Install the same version of Herring on all hosts.",
            )
        if rank in came:
            first = came[rank][1]["hostname"]
            return (
                f"Rank {rank} has come twice, from {first} and from {hello['hostname']}.",
                "Give each process a rank of its own, and end processes of an earlier start.",
            )
        if not 0 <= rank < self._size:
            return (
                f"Rank {rank} has come to a job of {self._size} ranks.",
                "Start all ranks with the same size.",
            )
        return None

    def examine(self, curve: bool = False) -> None:
        """Asks all that there is to ask, one examination after the other.

        Args:
            curve: Whether to measure messages of many sizes, too.
        """
        self._facts()
        if len(self.about.hosts) > 1:
            self._names()
            self._open()
            self._reach()
            self._pings(range(len(self.about.hosts)), first=True)
            self._probe()
            self._races()
            self._again()
            if curve:
                self._curves()
            self._late_clocks()

    def _facts(self) -> None:
        for index, answer in self._ask_all("its facts", {"do": "facts"}, 15.0).items():
            self.about.hosts[index].facts = answer

    def _names(self) -> None:
        about = self.about
        names = dict.fromkeys(host.hostname for host in about.hosts)
        if about.rendezvous:
            names[about.rendezvous] = None
        ask = {"do": "names", "names": list(names), "seconds": _NAME_SECONDS}
        for index, answer in self._ask_all("names", ask, _NAME_SECONDS).items():
            about.hosts[index].names = answer

    def _open(self) -> None:
        asks = {
            index: {"do": "open", "ports": self._ports_of(host)}
            for index, host in enumerate(self.about.hosts)
        }
        for index, answer in self._ask("its ports", asks, 5.0).items():
            host = self.about.hosts[index]
            host.ports, host.failure = answer["ports"], answer["failure"]
            self._datagrams[index] = answer["datagrams"]

    def _ports_of(self, host: Host) -> int:
        """Returns on how many ports a host listens: those of its workers and of a server.

        Without a range, all ports are alike, and one is enough.
        """
        return min(len(host.ranks) + 1, _MOST_PORTS) if self.about.port_range else 1

    def _reach(self) -> None:
        def peers(index: int) -> dict[str, Any]:
            others = [
                {"index": other, "address": host.address, "ports": host.ports}
                for other, host in enumerate(self.about.hosts)
                if other != index
            ]
            # Hosts begin with different ones, so that not all connect to the same one at once.
            return {"do": "reach", "peers": others[index:] + others[:index]}

        asks = {index: {**peers(index), "seconds": _CONNECT_SECONDS} for index in self._channels}
        size = max((len(host.ports) for host in self.about.hosts), default=1)
        waits = 1 + len(self.about.hosts) * size // 32
        for index, answer in self._ask("connections", asks, waits * _CONNECT_SECONDS).items():
            for other, ports in answer.items():
                link = self.about.link(index, int(other))
                link.ports = {int(port): reason for port, reason in ports.items()}

    def _pings(self, hosts: Iterable[int], first: bool = False, only: int | None = None) -> None:
        asks: dict[int, dict[str, Any]] = {}
        for index in hosts:
            others = sample_of(len(self.about.hosts), index) if only is None else [only]
            peers = [peer for other in others if (peer := self._peer(index, other))]
            asks[index] = {"do": "ping", "peers": peers, "count": _PINGS, "seconds": _PING_SECONDS}
        most = max((len(ask["peers"]) for ask in asks.values()), default=0)
        for index, answer in self._ask("round trips", asks, most * 0.5).items():
            for text, found in answer.items():
                other = int(text)
                link = self.about.link(index, other)
                if link.rtt is None or found["rtt"] < link.rtt:
                    link.rtt = found["rtt"]
                    if first:
                        link.offset, link.offset_error = found["ahead"], found["rtt"] / 2
                if other == 0 and first:
                    self._first_clocks[index] = (found["at"], found["ahead"])
                elif other == 0 and index in self._first_clocks:
                    host = self.about.hosts[index]
                    host.late_clock = found["ahead"]
                    host.clock_seconds = found["at"] - self._first_clocks[index][0]

    def _peer(self, index: int, other: int) -> dict[str, Any] | None:
        """Returns how one host calls another, or None if it cannot."""
        ports = self.about.link(index, other).ports
        port = next((port for port, reason in ports.items() if not reason), None)
        if port is None or other not in self._channels:
            return None
        return {"index": other, "address": self.about.hosts[other].address, "port": port}

    def _probe(self) -> None:
        def mtu(index: int) -> int:
            return int(self.about.hosts[index].facts.get("interface", {}).get("mtu", 1500))

        asks: dict[int, dict[str, Any]] = {}
        for index in self._channels:
            peers = []
            for other in sample_of(len(self.about.hosts), index):
                link = self.about.link(index, other)
                if other not in self._datagrams or not link.open:
                    continue
                peers.append(
                    {
                        "index": other,
                        "address": self.about.hosts[other].address,
                        "port": self._datagrams[other],
                        # An interface such as loopback takes packets larger than IP allows.
                        "mtu": min(mtu(index), mtu(other), 65535),
                        "rtt": link.rtt or 0.0,
                    }
                )
            asks[index] = {"peers": peers, "count": _DATAGRAMS}
        # Small datagrams first: large ones of any host may fill the queue of a slow link.
        self._losses(asks)
        self._sizes(asks)
        # A host that is busy may be late with its answers, so what is bad is tried again.
        worse: dict[int, dict[str, Any]] = {}
        for index, ask in asks.items():
            peers = [p for p in ask["peers"] if self.about.link(index, p["index"]).loses_large]
            if peers:
                worse[index] = {**ask, "peers": peers}
        self._sizes(worse, smaller=False)
        for index in lossy_hosts(self.about)[:_MOST_LOSSY]:
            for (_, other), link in self.about.links.items():
                if other == index:
                    link.sent = 0  # the answers to this host's own datagrams come the same way
            self._losses({index: {**asks[index], "count": _MORE_DATAGRAMS}})

    def _losses(self, asks: Mapping[int, Mapping[str, Any]]) -> None:
        each = {index: {**ask, "do": "losses"} for index, ask in asks.items()}
        for index, answer in self._ask("small datagrams", each, 5.0).items():
            for text, found in answer.items():
                link = self.about.link(index, int(text))
                link.sent, link.lost = found["sent"], found["lost"]

    def _sizes(self, asks: Mapping[int, Mapping[str, Any]], smaller: bool = True) -> None:
        each = {index: {**ask, "do": "sizes", "smaller": smaller} for index, ask in asks.items()}
        for index, answer in self._ask("large datagrams", each, 5.0).items():
            for peer in asks[index]["peers"]:
                link = self.about.link(index, peer["index"])
                found = answer.get(str(peer["index"]), {"largest": 0})
                link.largest, link.probed = max(link.largest, found["largest"]), peer["mtu"]

    def _races(self) -> None:
        rounds = rounds_of(len(self.about.hosts))
        seconds = self._race_seconds(len(rounds))
        for number, pairs in enumerate(rounds):
            if time.monotonic() + 2 * seconds > self._deadline:
                left = len(rounds) - number
                self.about.skipped.append(f"{left} of {len(rounds)} rounds of link rates")
                return
            self._race(pairs, seconds)

    def _race_seconds(self, rounds: int) -> float:
        trips = [link.rtt for link in self.about.links.values() if link.rtt is not None]
        least, most = _RACE_SECONDS
        usual = min(max(_ALL_RACES / max(rounds, 1), least), most)
        return min(max(usual, _ROUND_TRIPS * max(trips, default=0.0)), _LONGEST_RACE)

    def _race(
        self, pairs: Iterable[tuple[int, int]], seconds: float, one_way: bool = False
    ) -> None:
        """Measures pairs at the same time.

        Args:
            pairs: Pairs of hosts.
            one_way: Whether only the first host of each pair sends. Otherwise acknowledgements wait
                behind the data of a slow way back.
        """
        asks: dict[int, dict[str, Any]] = {}
        for one, other in pairs:
            for caller, called in ((one, other), (other, one)):
                peer = self._peer(caller, called)
                if peer is None or caller not in self._channels:
                    continue
                common = {"do": "race", "name": f"{next(self._numbers)}", "seconds": seconds}
                asks[caller] = {**common, **peer, "calls": True, "sends": True}
                asks[called] = {**common, "index": caller, "calls": False, "sends": True}
                if one_way:
                    asks[other]["sends"] = False
                break
        for index, found in self._ask("link rates", asks, seconds).items():
            other = asks[index]["index"]
            here, there = self.about.link(index, other), self.about.link(other, index)
            # What arrives here was sent by the other host.
            if one_way:
                if asks[index]["sends"]:
                    here.resent = min(here.resent, found["resent"])
                    here.limited = min(here.limited, found["limited"])
                else:
                    there.alone = True
                    there.rate = max(there.rate or 0.0, found["rate"])
            else:
                there.rate = found["rate"]
                here.resent, here.limited = found["resent"], found["limited"]

    def _again(self) -> None:
        """Measures links again, one at a time, that look slow or long beside the others.

        A link that stays as slow as before is settled. A busy host may be slow for once, so the
        others have more attempts.
        """
        seconds = max(_AGAIN_SECONDS, self._race_seconds(100))
        settled: set[tuple[int, int]] = set()
        for _ in range(_ATTEMPTS):
            pairs = [pair for pair in suspects(self.about) if pair not in settled]
            for one, other in pairs[:_MOST_AGAIN]:
                if time.monotonic() + 3 * seconds > self._deadline:
                    self.about.skipped.append("links that look slow, another time")
                    return
                self._pings([one], only=other)
                found = [self._faster(pair, seconds) for pair in ((one, other), (other, one))]
                if not any(found):
                    settled.add((one, other))

    def _faster(self, pair: tuple[int, int], seconds: float) -> bool:
        """Measures one direction again if it is slow; returns whether it was faster than before."""
        link = self.about.link(*pair)
        before, alone = link.rate or 0.0, link.alone
        if not is_slow(self.about, *pair):
            return False
        self._race([pair], seconds, one_way=True)
        return not alone or (link.rate or 0.0) > _FASTER * before

    def _curves(self) -> None:
        """Measures messages of many sizes; each host sends or receives for one pair at a time."""
        rounds = rounds_of(len(self.about.hosts))[:_CURVE_ROUNDS]
        ways = [[pair[::way] for pair in pairs] for pairs in rounds for way in (1, -1)]
        for number, pairs in enumerate(ways):
            if time.monotonic() + 2 * MOST_SECONDS > self._deadline:
                left = len(ways) - number
                self.about.skipped.append(f"{left} of {len(ways)} rounds of messages of many sizes")
                return
            asks = {}
            for one, other in pairs:
                if peer := self._peer(one, other):
                    asks[one] = {"do": "curve", **peer}
            for index, found in self._ask("messages", asks, 2 * MOST_SECONDS).items():
                link = self.about.link(index, asks[index]["index"])
                link.curve = [(int(size), float(seconds)) for size, seconds in found["points"]]

    def _late_clocks(self) -> None:
        self._pings([index for index in self._channels if index], only=0)

    def _ask_all(self, what: str, ask: Mapping[str, Any], seconds: float) -> dict[int, Any]:
        return self._ask(what, dict.fromkeys(self._channels, ask), seconds)

    def _ask(
        self, what: str, asks: Mapping[int, Mapping[str, Any]], seconds: float
    ) -> dict[int, Any]:
        """Asks hosts, by index, at the same time, and returns the answers of those with one."""
        deadline = min(time.monotonic() + seconds + _SLACK, self._deadline)
        numbers: dict[int, int] = {}
        for index, ask in asks.items():
            channel = self._channels.get(index)
            if channel is None:
                continue
            numbers[index] = next(self._numbers)
            if not self._tell(channel, {**ask, "number": numbers[index]}):
                self._lose(index, what)
        found = {}
        for index, number in numbers.items():
            channel = self._channels.get(index)
            if channel is None:
                continue
            try:
                answer = channel.receive(max(deadline - time.monotonic(), 0.05))
                if answer["number"] != number:
                    raise OSError("an answer to another question")
            except (OSError, KeyError):
                self._lose(index, what)
                continue
            if "answer" in answer:
                found[index] = answer["answer"]
            elif asks[index]["do"] == "open":
                self.about.hosts[index].failure = str(answer.get("failed", ""))
        return found

    def _lose(self, index: int, what: str) -> None:
        """Goes on without a host that does not answer."""
        self._channels.pop(index).close()
        if time.monotonic() >= self._deadline:
            self.about.skipped.append(f"{what} of {self.about.hosts[index].name}")
        else:
            self.about.hosts[index].lost_in = what

    def _tell(self, channel: Channel, message: Mapping[str, Any]) -> bool:
        try:
            channel.send(message)
        except OSError:
            return False
        return True

    def _welcome(self, channel: Channel) -> None:
        """Keeps the introduction of a rank, in a thread of its own."""
        hello = channel.receive(5.0)
        if isinstance(hello["rank"], int) and isinstance(hello["hostname"], str):
            self._came.put((channel, hello))
        else:
            channel.close()


def _names(hellos: list[dict[str, Any]]) -> list[str]:
    """Returns a name for each host: its own name, with its address if others have that name."""
    own = [hello["hostname"] for hello in hellos]
    found = [
        name if own.count(name) == 1 else f"{name} ({hello['address']})"
        for name, hello in zip(own, hellos)
    ]
    # Nodes that are emulated on one machine share the address, too.
    return [
        name if found.count(name) == 1 else f"{name} (rank {hello['rank']})"
        for name, hello in zip(found, hellos)
    ]


def _rank(hello: Mapping[str, Any]) -> Rank:
    return Rank(
        number=int(hello["rank"]),
        settings=dict(hello["settings"]),
        cores=frozenset(hello["cores"]),
        problem=str(hello["problem"]),
        warnings=tuple(hello["warnings"]),
    )
