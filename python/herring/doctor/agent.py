"""The doctor on one host: answers what the hub on rank 0 asks, one question after the other."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from herring.doctor import facts
from herring.doctor.curve import answer_messages, measure_messages
from herring.doctor.links import Race, answer_pings, discard, ping, race, reach, resolve_all
from herring.doctor.probes import Peer, Probes
from herring.errors import ConfigurationError, HerringError
from herring.rendezvous.channel import DOCTOR, Channel, Listener, call
from herring.rendezvous.endpoint import bind_any

#: The version of the doctor's messages.
VERSION = 2

_RACE_SECONDS = 5.0  # that the two ends of a race may wait for each other
_CALL_SECONDS = 3.0


def introduction(rank: int, identity: str, address: str) -> dict[str, Any]:
    """Returns what each rank tells rank 0 first."""
    settings, problem, warnings = facts.given_settings()
    return {
        "doctor": VERSION,
        "rank": rank,
        "host": identity,
        "hostname": socket.gethostname(),
        "address": address,
        "settings": settings,
        "problem": problem,
        "warnings": warnings,
        "cores": sorted(os.sched_getaffinity(0)),
    }


class Agent:
    """Answers the hub's questions until the hub ends the examination."""

    def __init__(self, hub: Channel, secret: bytes, address: str) -> None:
        """Prepares to answer."""
        self._hub = hub
        self._secret = secret
        self._address = address
        self._listener: Listener | None = None
        self._probes: Probes | None = None
        self._arrivals: dict[str, socket.socket] = {}  # connections for races, by the race's name
        self._arrived = threading.Condition()
        self._commands: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
            "facts": lambda _: facts.gather(self._address),
            "open": self._open,
            "names": lambda ask: resolve_all(ask["names"], ask["seconds"]),
            "reach": lambda ask: _by_text(reach(ask["peers"], self._secret, ask["seconds"])),
            "ping": self._ping,
            "losses": self._losses,
            "sizes": self._sizes,
            "race": self._race,
            "curve": self._curve,
        }

    def serve(self, patience: float) -> None:
        """Answers until the hub says that the examination is over.

        Args:
            patience: Seconds after which a silent hub is given up.

        Raises:
            OSError: The hub has gone.
        """
        try:
            while True:
                ask = self._hub.receive(patience)
                if ask.get("do") == "end":
                    return
                answer: dict[str, Any] = {}
                try:
                    answer["answer"] = self._commands[ask["do"]](ask)
                except (OSError, HerringError) as error:
                    answer["failed"] = getattr(error, "strerror", None) or str(error)
                self._hub.send({"number": ask["number"], **answer})
        finally:
            if self._listener is not None:
                self._listener.close()
            if self._probes is not None:
                self._probes.close()

    def _open(self, ask: Mapping[str, Any]) -> dict[str, Any]:
        """Listens on as many ports as the job would use here."""
        sockets: list[socket.socket] = []
        failure = ""
        try:
            for _ in range(ask["ports"]):
                sockets.append(bind_any(self._address, os.environ))
        except ConfigurationError as error:
            failure = str(error)
        self._listener = Listener(sockets, self._secret, DOCTOR, self._welcome)
        self._probes = Probes(self._address, self._secret)
        ports = [int(each.getsockname()[1]) for each in sockets]
        return {"ports": ports, "datagrams": self._probes.port, "failure": failure}

    def _welcome(self, channel: Channel) -> None:
        """Serves a connection of another host, in a thread of its own."""
        ask = channel.receive(_CALL_SECONDS)
        if ask["do"] == "ping":
            with channel.socket:
                answer_pings(channel)
        elif ask["do"] == "curve":
            with channel.socket:
                answer_messages(channel.socket)
        elif ask["do"] == "race":
            with self._arrived:
                self._arrivals[str(ask["name"])] = channel.socket
                self._arrived.notify_all()
        else:
            channel.close()

    def _ping(self, ask: Mapping[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for peer in ask["peers"]:
            try:
                channel = call(peer["address"], peer["port"], self._secret, DOCTOR, _CALL_SECONDS)
                with channel.socket:
                    channel.send({"do": "ping"})
                    rtt, ahead = ping(channel, ask["count"], ask["seconds"])
            except (OSError, HerringError):
                continue
            found[str(peer["index"])] = {"rtt": rtt, "ahead": ahead, "at": time.monotonic()}
        return found

    def _losses(self, ask: Mapping[str, Any]) -> dict[str, Any]:
        assert self._probes is not None  # the hub opens before it probes
        found = self._probes.losses([Peer(**peer) for peer in ask["peers"]], ask["count"])
        return {str(index): {"sent": sent, "lost": lost} for index, (sent, lost) in found.items()}

    def _sizes(self, ask: Mapping[str, Any]) -> dict[str, Any]:
        assert self._probes is not None
        found = self._probes.sizes([Peer(**peer) for peer in ask["peers"]], ask["smaller"])
        return {str(index): {"largest": largest} for index, largest in found.items()}

    def _curve(self, ask: Mapping[str, Any]) -> dict[str, Any]:
        """Measures messages of many sizes to one other host."""
        channel = call(
            ask["address"], ask["port"], self._secret, DOCTOR, _CALL_SECONDS, small=False
        )
        with channel.socket:
            channel.send({"do": "curve"})
            return {"points": measure_messages(channel.socket)}

    def _race(self, ask: Mapping[str, Any]) -> dict[str, Any]:
        """Measures the rate of the link to one other host in both directions."""
        connection = self._call_race(ask) if ask["calls"] else self._await_race(ask["name"])
        try:
            found: Race = race(connection, ask["seconds"], ask["sends"])
        finally:
            discard(connection)
        return vars(found)

    def _call_race(self, ask: Mapping[str, Any]) -> socket.socket:
        channel = call(
            ask["address"], ask["port"], self._secret, DOCTOR, _CALL_SECONDS, small=False
        )
        channel.send({"do": "race", "name": ask["name"]})
        return channel.socket

    def _await_race(self, name: str) -> socket.socket:
        with self._arrived:
            self._arrived.wait_for(lambda: name in self._arrivals, _RACE_SECONDS)
            if name not in self._arrivals:
                raise TimeoutError(0, "the other host did not connect")
            return self._arrivals.pop(name)


def _by_text(found: Mapping[int, Mapping[int, str]]) -> dict[str, Any]:
    """Returns the dictionaries with keys that JSON can represent."""
    return {
        str(index): {str(port): why for port, why in each.items()} for index, each in found.items()
    }
