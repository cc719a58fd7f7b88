"""Receives packets that are sent at once, until all have arrived or no more arrive.

The argument is the number of packets. The program prints how many arrived, and the time between the
first and the last. Times are the kernel's timestamps, because Python itself may be delayed.
"""

import socket
import struct
import sys

own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
own.bind(("", 7001))
own.settimeout(1.5)
own.setsockopt(socket.SOL_SOCKET, 33, 1 << 25)  # SO_RCVBUFFORCE
own.setsockopt(socket.SOL_SOCKET, 35, 1)  # SO_TIMESTAMPNS
print("ready", flush=True)
times = []
try:
    while len(times) < int(sys.argv[1]):
        _, stamps, _, _ = own.recvmsg(65536, 128)
        seconds, nanos = struct.unpack("qq", stamps[0][2])
        times.append(seconds + nanos * 1e-9)
except TimeoutError:
    pass
print(len(times), times[-1] - times[0], flush=True)
