"""Measures the rates of the lab's links.

Each host sends to the next host while the previous host sends to it, all at the same time. Host 0
measures a round trip before. This script runs on each host and imports only the standard library,
so that many of them start quickly::

    probe.py OWN_ADDRESS NEXT_ADDRESS PORT SECONDS MEASURE_ROUND_TRIP

The script prints ``ready`` and waits for a line with the moment of the start, in monotonic seconds;
all hosts of a machine have the same clock. Then it prints the received bits per second and the
round trip in seconds.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import time

_CHUNK = 256 << 10
_ROUND_TRIPS = 21
_CONNECT = 60.0  # seconds; paths may be long


def serve(listener: socket.socket, received: list[tuple[float, int]], end: threading.Event) -> None:
    """Echoes bytes on connections that begin with ``p``; counts and drops the data of others."""

    def one(peer: socket.socket) -> None:
        with contextlib.suppress(OSError), peer:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if peer.recv(1) == b"p":
                while byte := peer.recv(1):
                    peer.sendall(byte)
                return
            buffer = bytearray(_CHUNK)
            while not end.is_set() and (count := peer.recv_into(buffer)):
                received.append((time.monotonic(), count))

    while not end.is_set():
        try:
            peer, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=one, args=(peer,), daemon=True).start()


def round_trip(peer: tuple[str, int], end: float) -> float:
    """Returns the median round trip of a byte, in seconds; returns soon after `end`."""
    times: list[float] = []
    with socket.create_connection(peer, _CONNECT) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(b"p")
        while len(times) < _ROUND_TRIPS and not (times and time.monotonic() > end):
            start = time.monotonic()
            connection.sendall(b"x")
            connection.recv(1)
            times.append(time.monotonic() - start)
    return sorted(times)[len(times) // 2]


def main(own: str, following: str, port: int, seconds: float, measure_round_trip: bool) -> None:
    """Measures, and prints the results; see the module's description."""
    received: list[tuple[float, int]] = []
    end = threading.Event()
    listener = socket.create_server((own, port))
    threading.Thread(target=serve, args=(listener, received, end), daemon=True).start()
    print("ready", flush=True)
    start = float(sys.stdin.readline())
    took = round_trip((following, port), start) if measure_round_trip else 0.0
    time.sleep(max(0.0, start - time.monotonic()))
    with socket.create_connection((following, port), _CONNECT) as connection:
        connection.sendall(b"s")
        connection.settimeout(1.0)
        data = bytes(_CHUNK)
        # The other side may end a moment earlier. A connection that really fails gives a low rate.
        with contextlib.suppress(ConnectionError):
            while time.monotonic() < start + seconds:
                with contextlib.suppress(TimeoutError):
                    connection.send(data)
        time.sleep(max(0.0, start + seconds - time.monotonic()))
        end.set()
        # The first third does not count: it has slow start and the saved-up burst of the buckets.
        begin, finish = start + seconds / 3, start + seconds
        total = sum(count for when, count in list(received) if begin <= when < finish)
        print(total * 8 / (finish - begin), took, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), sys.argv[5] == "1")
