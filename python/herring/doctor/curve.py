"""The time of a message over its size between two hosts, and the latency and rate that fit it.

The models of the measurement study (section 4) take both numbers: a message of n bytes takes
alpha + n beta seconds.
"""

from __future__ import annotations

import socket
import statistics
import struct
import time
from pathlib import Path

from herring.base.fit import fit_line
from herring.base.pictures import subplots
from herring.base.units import counted, show_duration, show_rate, show_size
from herring.doctor.records import Examination, Link
from herring.rendezvous.channel import ChannelError

#: Bytes of the messages.
SIZES = (
    1,
    100,
    1000,
    4000,
    *(base * 10**power for power in (4, 5, 6) for base in (1, 4)),
    16000000,
)
#: The seconds that all messages between two hosts should take.
MOST_SECONDS = 3.0
_EACH_SECONDS = MOST_SECONDS / len(SIZES)
_REPEATS = 50
_LEAST_REPEATS = 2  # the first is not counted, because TCP's window may still grow
_SHORT = 16 << 10  # messages up to this size show more of the latency than of the rate
_SILENCE = 10.0  # seconds
_LENGTH = struct.Struct("!Q")
_CHUNK = 1 << 20


def answer_messages(connection: socket.socket) -> None:
    """Answers each message by a byte, until the other end closes the connection."""
    connection.settimeout(_SILENCE)
    buffer = bytearray(_CHUNK)
    while len(head := connection.recv(_LENGTH.size, socket.MSG_WAITALL)) == _LENGTH.size:
        (left,) = _LENGTH.unpack(head)
        if left > SIZES[-1]:
            raise ChannelError(f"a message of {left} bytes is too long")
        while left:
            # The kernel discards what has arrived instead of copying it.
            count = connection.recv_into(buffer, min(left, _CHUNK), socket.MSG_TRUNC)
            if not count:
                return
            left -= count
        connection.sendall(b".")


def measure_messages(connection: socket.socket) -> list[tuple[int, float]]:
    """Measures messages of all `SIZES`, as far as the time allows.

    Args:
        connection: A connection whose other end runs `answer_messages`.

    Returns:
        Bytes, and the seconds that a message takes one way: the median of several. The way back of
        the answer counts as half of the shortest round trip.
    """
    connection.settimeout(_SILENCE)
    payload = memoryview(bytes(SIZES[-1]))
    found: list[tuple[int, float]] = []
    shortest, end = float("inf"), time.monotonic() + MOST_SECONDS
    for size in SIZES:
        message = _LENGTH.pack(size) + payload[:size]
        trips: list[float] = []
        begun = time.monotonic()
        if found and begun + _LEAST_REPEATS * found[-1][1] * size / found[-1][0] > end:
            break
        while len(trips) < _REPEATS:
            start = time.monotonic()
            if len(trips) >= _LEAST_REPEATS and start - begun > _EACH_SECONDS:
                break
            connection.sendall(message)
            if not connection.recv(1):
                raise ChannelError("the other end has closed the connection")
            trips.append(time.monotonic() - start)
        shortest = min(shortest, *trips)
        found.append((size, statistics.median(trips[1:])))
    return [(size, trip - shortest / 2) for size, trip in found]


def _points(link: Link) -> list[tuple[float, float]]:
    return [(float(size), seconds) for size, seconds in link.curve if seconds > 0]


def fitted(link: Link) -> tuple[float, float]:
    """Returns the latency in seconds and the rate in bits per second of a link with a curve."""
    points = _points(link)
    alpha, beta, _ = fit_line(points, _SHORT if points[-1][0] > _SHORT else 0.0)
    return alpha, 8 / beta


def measured(about: Examination) -> list[tuple[str, Link]]:
    """Returns the links that have a curve, with the names of both hosts."""
    return [
        (f"{about.hosts[one].name} -> {about.hosts[other].name}", link)
        for (one, other), link in sorted(about.links.items())
        if len(_points(link)) > 1
    ]


def curve_rows(about: Examination) -> list[list[str]]:
    """Returns the table of the times over the sizes; only a head if nothing was measured."""
    rows = [["message", "one way", "carries", "slowest", "where"]]
    links = measured(about)
    for size in SIZES:
        times = [(dict(link.curve).get(size), name) for name, link in links]
        known = [(seconds, name) for seconds, name in times if seconds]
        if not known:
            continue
        median = statistics.median(seconds for seconds, _ in known)
        slowest, where = max(known)
        rows.append(
            [
                show_size(size),
                show_duration(median),
                show_rate(8 * size / median),
                show_duration(slowest),
                where,
            ]
        )
    return rows


def curve_sentences(about: Examination) -> list[str]:
    """Returns what fits the curves, and how to compute with it; empty without curves."""
    links = measured(about)
    if not links:
        return []
    fits = [fitted(link) for _, link in links]
    alpha = statistics.median(latency for latency, _ in fits)
    rate = statistics.median(bits for _, bits in fits)
    (slowest, where) = min((bits, name) for (_, bits), (name, _) in zip(fits, links))
    (longest, far) = max((latency, name) for (latency, _), (name, _) in zip(fits, links))
    given = show_rate(rate).replace(" ", "").removesuffix("/s").lower()
    return [
        f"Fitted to {counted(len(links), 'direction')} of links: a message of n bytes takes alpha "
        f"+ n beta, alpha {show_duration(alpha)}, 1/beta {show_rate(rate)} (medians). The longest "
        f"alpha is {show_duration(longest)} ({far}), the lowest rate {show_rate(slowest)} "
        f"({where}).",
        f"'herring simulate --nodes {len(about.hosts)} --rate {given} --rtt "
        f"{show_duration(2 * alpha).replace(' ', '')}' computes with these numbers.",
    ]


def draw_curves(about: Examination, path: Path) -> None:
    """Draws the time over the size of each link, and the line that fits the median.

    Raises:
        ConfigurationError: matplotlib is not installed.
    """
    figure, axes = subplots(1, (7.0, 4.5))
    links = measured(about)
    for number, (name, link) in enumerate(links):
        sizes, seconds = zip(*link.curve)
        # More links than a reader can tell apart have no names.
        label = name if len(links) <= 8 else "measured" if number == 0 else None
        axes.plot(sizes, seconds, marker="o", markersize=4, linewidth=1.2, label=label)
    if links:
        fits = [fitted(link) for _, link in links]
        alpha = statistics.median(latency for latency, _ in fits)
        rate = statistics.median(bits for _, bits in fits)
        text = f"{show_duration(alpha)} + bytes / {show_rate(rate)}"
        sizes = [10 ** (power / 10) for power in range(73)]
        line = [alpha + 8 * size / rate for size in sizes]
        axes.plot(sizes, line, linestyle="--", color="0.3", linewidth=1.2, label=text)
        axes.legend(fontsize=8)
    axes.set(xscale="log", yscale="log", xlabel="message (bytes)", ylabel="time, one way (s)")
    axes.set_title("Messages between hosts over one TCP connection", fontsize=10)
    figure.savefig(path)


def curve_document(link: Link) -> dict[str, object]:
    """Returns the curve of a link for JSON; empty if there is none."""
    if len(_points(link)) < 2:
        return {}
    alpha, bits = fitted(link)
    return {
        "curve": [{"bytes": size, "seconds": seconds} for size, seconds in link.curve],
        "alpha_seconds": alpha,
        "fitted_bits_per_second": bits,
    }
