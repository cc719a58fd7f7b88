"""Sends packets one after the other, and prints the shortest round trip in seconds.

The arguments are the address of the other side, the size of the payload and the number of packets.
"""

import socket
import sys
import time

address, size, count, patience = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), 2.0
peer = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
peer.connect((address, 7000))
peer.settimeout(patience)
times, data = [], bytes(size)
for _ in range(count):
    start = time.monotonic()
    peer.send(data)
    try:
        peer.recv(65536)
    except TimeoutError:
        continue
    times.append(time.monotonic() - start)
print(min(times))
