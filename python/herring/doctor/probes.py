"""Datagrams between hosts: which sizes arrive whole, and how many of the small ones are lost.

A probe cannot be fragmented on its way. The host that receives it answers with a small datagram.
Probes and answers carry a MAC under the job's secret, and what has none is dropped. An answer is
never larger than its probe, so nobody can use a host to flood another one.
"""

from __future__ import annotations

import dataclasses
import hmac
import secrets
import socket
import struct
import threading
import time
from collections.abc import Sequence

_HEADER = struct.Struct("!4sB16sI")  # magic, kind, the prober's session, number
_MAGIC = b"HRDP"
_PROBE, _ANSWER = 1, 2
_MAC_BYTES = 16
_SMALL = _HEADER.size + _MAC_BYTES
# Numbers of linux/in.h and linux/in6.h that the module socket lacks.
_IP_MTU_DISCOVER, _IPV6_MTU_DISCOVER, _PROBE_MTU = 10, 23, 3
# What links and tunnels between hosts usually carry, in bytes of an IP packet.
_USUAL = (9000, 8950, 4470, 4000, 2000, 1500, 1492, 1450, 1400, 1280, 576)
_REPEATS = 3
_PAUSE = 0.002
_PATIENCE = 0.6
_POLL = 0.005


@dataclasses.dataclass(frozen=True)
class Peer:
    """A host that answers probes."""

    index: int  # its index
    address: str  # its address
    port: int  # the port of its `Probes`
    mtu: int  # bytes of the largest packet that both hosts' interfaces take
    rtt: float = 0.0  # the round trip in seconds, as far as it is known


def sizes_below(mtu: int) -> list[int]:
    """Returns the sizes of packets to try, in bytes: `mtu` and usual sizes below it."""
    return [mtu, *(size for size in _USUAL if size < mtu)]


class Probes:
    """A socket that answers other hosts' probes, and sends its own."""

    def __init__(self, address: str, secret: bytes) -> None:
        """Binds a port and starts to answer; raises OSError if the address cannot be bound."""
        six = ":" in address
        self._overhead = (40 if six else 20) + 8
        self._secret = secret
        self._session = secrets.token_bytes(16)
        self._arrived: set[int] = set()
        self._number = 0
        self._closed = False
        self._socket = socket.socket(socket.AF_INET6 if six else socket.AF_INET, socket.SOCK_DGRAM)
        try:
            level = socket.IPPROTO_IPV6 if six else socket.IPPROTO_IP
            option = _IPV6_MTU_DISCOVER if six else _IP_MTU_DISCOVER
            self._socket.setsockopt(level, option, _PROBE_MTU)
            self._socket.bind((address, 0))
        except OSError:
            self._socket.close()
            raise
        self.port = int(self._socket.getsockname()[1])
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        """Stops to answer."""
        self._closed = True
        self._socket.close()

    def losses(self, peers: Sequence[Peer], count: int) -> dict[int, tuple[int, int]]:
        """Sends small datagrams to all; returns how many went and were not answered, by peer."""
        sent: dict[int, list[int]] = {peer.index: [] for peer in peers}
        for _ in range(count):
            for peer in peers:
                if number := self._send(peer, _SMALL):
                    sent[peer.index].append(number)
            time.sleep(_PAUSE)
        self._await({number for numbers in sent.values() for number in numbers}, _patience(peers))
        arrived = set(self._arrived)
        return {
            index: (len(numbers), sum(number not in arrived for number in numbers))
            for index, numbers in sent.items()
        }

    def sizes(self, peers: Sequence[Peer], smaller: bool = True) -> dict[int, int]:
        """Finds the largest packets that arrive at peers, for all of them at the same time.

        Args:
            smaller: Whether to try smaller sizes for those where the largest one does not arrive.

        Returns:
            Bytes of the largest packet that arrived, by the peers' indices; 0 if none did.
        """
        found = dict.fromkeys((peer.index for peer in peers), 0)
        left = list(peers)
        for sizes in (lambda mtu: [mtu], sizes_below)[: 2 if smaller else 1]:
            sent: dict[int, tuple[int, int]] = {}
            for _ in range(_REPEATS):
                latest: set[int] = set()
                for peer in left:
                    for size in sizes(peer.mtu):
                        if number := self._send(peer, size - self._overhead):
                            sent[number] = (peer.index, size)
                            latest.add(number)
                        time.sleep(_PAUSE)
                self._await(latest, _patience(left) / _REPEATS)
                for number in set(sent) & self._arrived:
                    index, size = sent[number]
                    found[index] = max(found[index], size)
                left = [peer for peer in left if found[peer.index] < peer.mtu]
                if not left:
                    return found
        return found

    def _await(self, numbers: set[int], seconds: float) -> None:
        """Waits until these probes have been answered, or the time is over."""
        deadline = time.monotonic() + seconds
        while not numbers <= self._arrived and time.monotonic() < deadline:
            time.sleep(_POLL)

    def _send(self, peer: Peer, size: int) -> int:
        """Sends a probe; returns its number, or 0 if this host cannot send one of this size."""
        self._number += 1
        header = _HEADER.pack(_MAGIC, _PROBE, self._session, self._number)
        probe = header + self._mac(header)
        try:
            self._socket.sendto(probe + bytes(max(size - len(probe), 0)), (peer.address, peer.port))
        except OSError:
            return 0
        return self._number

    def _serve(self) -> None:
        while not self._closed:
            try:
                data, sender = self._socket.recvfrom(65536)
            except OSError:
                continue  # an error that an earlier datagram caused, or the end
            header, mac = data[: _HEADER.size], data[_HEADER.size : _SMALL]
            if len(data) < _SMALL or not hmac.compare_digest(mac, self._mac(header)):
                continue
            magic, kind, session, number = _HEADER.unpack(header)
            if magic != _MAGIC:
                continue
            if kind == _ANSWER and session == self._session:
                self._arrived.add(number)
            elif kind == _PROBE:
                answer = _HEADER.pack(_MAGIC, _ANSWER, session, number)
                try:
                    self._socket.sendto(answer + self._mac(answer), sender)
                except OSError:
                    pass  # the route back is broken; the prober notices

    def _mac(self, header: bytes) -> bytes:
        digest = hmac.digest(self._secret, b"herring doctor probe" + header, "sha256")
        return digest[:_MAC_BYTES]


def _patience(peers: Sequence[Peer]) -> float:
    """Returns for how many seconds answers may be under way, or a busy host may be late."""
    return max([_PATIENCE, *(6 * peer.rtt for peer in peers)])
