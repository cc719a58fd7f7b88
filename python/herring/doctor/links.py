"""Measures connections between two hosts: who can be reached, round trips, clocks, rates."""

from __future__ import annotations

import dataclasses
import select
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from herring.errors import AuthenticationError
from herring.rendezvous.channel import DOCTOR, Channel, ChannelError, call

_CLOCK = struct.Struct("!d")
_THREADS = 32
_CHUNK = 256 << 10
_SAMPLE_SECONDS = 0.004
_SETTLED = 1 / 3  # of a race: until then TCP's window may still grow
_LEAST_PINGS = 3
# Fields of Linux's struct tcp_info (linux/tcp.h) by their offsets.
_TCP_INFO_BYTES = 192
_TOTAL_RETRANS, _DATA_SEGS_OUT, _BUSY, _RWND_LIMITED = 100, 156, 168, 176


def reach(
    peers: Sequence[Mapping[str, Any]], secret: bytes, seconds: float
) -> dict[int, dict[int, str]]:
    """Connects to every port of every peer at the same time.

    Args:
        peers: Each with ``index``, ``address`` and ``ports``.

    Returns:
        Why a port cannot be reached, by the peer's index and the port; an empty text if it can.
    """
    places = [(peer["index"], peer["address"], port) for peer in peers for port in peer["ports"]]
    if not places:
        return {}

    def one(place: tuple[int, str, int]) -> str:
        _, address, port = place
        try:
            channel = call(address, port, secret, DOCTOR, seconds)
            channel.send({"do": "nothing"})
            channel.close()
        except TimeoutError:
            return f"no answer within {seconds:g} s"
        except (OSError, AuthenticationError) as error:
            return getattr(error, "strerror", None) or str(error)
        return ""

    found: dict[int, dict[int, str]] = {}
    with ThreadPoolExecutor(min(_THREADS, len(places))) as pool:
        for (index, _, port), reason in zip(places, pool.map(one, places)):
            found.setdefault(index, {})[port] = reason
    return found


def resolve_all(names: Sequence[str], seconds: float) -> dict[str, dict[str, Any]]:
    """Looks names up at the same time; returns ``addresses``, ``seconds`` and ``error`` of each."""

    def one(name: str) -> dict[str, Any]:
        start = time.monotonic()
        try:
            found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        except OSError as error:
            reason = error.strerror or str(error)
            return {"addresses": [], "seconds": time.monotonic() - start, "error": reason}
        addresses = sorted({str(each[4][0]) for each in found})
        return {"addresses": addresses, "seconds": time.monotonic() - start, "error": ""}

    late = {"addresses": [], "seconds": seconds, "error": f"no answer within {seconds:g} s"}
    pool = ThreadPoolExecutor(_THREADS)
    try:
        waits = {name: pool.submit(one, name) for name in names}
        deadline = time.monotonic() + seconds
        found = {}
        for name, wait in waits.items():
            try:
                found[name] = wait.result(max(deadline - time.monotonic(), 0.01))
            except Exception:  # a timeout; its class depends on the version of Python
                found[name] = late
        return found
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def answer_pings(channel: Channel) -> None:
    """Answers each byte with this host's clock, until the other end closes the connection."""
    channel.socket.settimeout(30.0)
    while channel.socket.recv(1):
        channel.socket.sendall(_CLOCK.pack(time.time()))


def ping(channel: Channel, count: int, seconds: float) -> tuple[float, float]:
    """Measures round trips and compares the clocks.

    Args:
        channel: A connection whose other end runs `answer_pings`.
        seconds: The time after which no further round trip begins.

    Returns:
        The shortest round trip in seconds, and the seconds by which the other host's clock was
        ahead during it. Half the round trip is the most by which the second value can be wrong.
    """
    deadline = time.monotonic() + seconds
    best, ahead = float("inf"), 0.0
    for number in range(count):
        if number >= _LEAST_PINGS and time.monotonic() > deadline:
            break
        sent_clock, sent = time.time(), time.monotonic()
        channel.socket.settimeout(5.0)
        channel.socket.sendall(b"?")
        data = b""
        while len(data) < _CLOCK.size:
            more = channel.socket.recv(_CLOCK.size - len(data))
            if not more:
                raise ChannelError("the other end has closed the connection")
            data += more
        trip = time.monotonic() - sent
        if trip < best:
            best, ahead = trip, _CLOCK.unpack(data)[0] - (sent_clock + trip / 2)
    return best, ahead


@dataclasses.dataclass(frozen=True)
class Race:
    """The figures of one end of a race."""

    rate: float  # bits per second that arrived here
    resent: float  # the share of segments that this end sent again
    limited: float  # the share of the time in which the other end's receive buffer held this end up


def race(connection: socket.socket, seconds: float, sends: bool = True) -> Race:
    """Sends and receives as fast as possible at the same time; both ends call it.

    The connection is useless afterwards, and what is still under way on it is discarded.

    Args:
        sends: Whether this end sends; it receives in any case.
    """
    connection.setblocking(False)
    payload, buffer = memoryview(bytes(_CHUNK)), bytearray(_CHUNK)
    start = time.monotonic()
    deadline = start + seconds
    total, samples, noted = 0, [(start, 0)], start
    ready = select.poll()
    ready.register(connection, select.POLLIN | (select.POLLOUT if sends else 0))
    while (now := time.monotonic()) < deadline:
        events = sum(event for _, event in ready.poll(1e3 * (deadline - now)))
        try:
            if events & ~select.POLLOUT:  # there are data, or an error to be read
                # The kernel discards what has arrived instead of copying it.
                count = connection.recv_into(buffer, _CHUNK, socket.MSG_TRUNC)
                if not count:
                    break
                total += count
                if now - noted > _SAMPLE_SECONDS:
                    noted = now
                    samples.append((now, total))
            if events & select.POLLOUT:
                connection.send(payload)
        except BlockingIOError:
            continue
        except OSError:
            break  # the other end was done first
    samples.append((time.monotonic(), total))
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    return Race(rate_of(samples, seconds), *_shares(info))


def rate_of(samples: Sequence[tuple[float, int]], seconds: float) -> float:
    """Returns the bits per second of the later part of a race.

    Args:
        samples: Times and how many bytes had arrived until then; the first one has 0 bytes.
    """
    start, (end, total) = samples[0][0], samples[-1]
    end = max(end, start + 0.9 * seconds)
    begun = start + _SETTLED * (end - start)
    at, before = max((each for each in samples if each[0] <= begun), default=samples[0])
    return 8 * (total - before) / (end - at)


def _shares(info: bytes) -> tuple[float, float]:
    """Returns the shares of segments sent again, and of time limited by the receiver's buffer."""
    info = info.ljust(_TCP_INFO_BYTES, b"\0")
    again, segments = (
        struct.unpack_from("=I", info, at)[0] for at in (_TOTAL_RETRANS, _DATA_SEGS_OUT)
    )
    busy, limited = (struct.unpack_from("=Q", info, at)[0] for at in (_BUSY, _RWND_LIMITED))
    return again / max(segments, 1), min(limited / max(busy, 1), 1.0)


def discard(connection: socket.socket) -> None:
    """Closes a connection and discards what it has not sent yet."""
    try:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    except OSError:
        pass
    connection.close()
