"""Sends every packet back."""

import socket

own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
own.bind(("", 7000))
print("ready", flush=True)
while True:
    data, peer = own.recvfrom(65536)
    own.sendto(data, peer)
