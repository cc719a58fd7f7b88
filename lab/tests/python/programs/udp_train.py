"""Sends packets without pauses.

The arguments are the address, the size of the payload and the number of packets.
"""

import socket
import sys

peer = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
peer.setsockopt(socket.SOL_SOCKET, 32, 1 << 25)  # SO_SNDBUFFORCE
for _ in range(int(sys.argv[3])):
    peer.sendto(bytes(int(sys.argv[2])), (sys.argv[1], 7001))
