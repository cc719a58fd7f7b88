"""Sends requests to the gate at HERRING_RENDEZVOUS: from kinds of strangers, and from a member."""

from __future__ import annotations

import json
import os
import socket
import time

from herring.rendezvous import munge, slurm
from herring.rendezvous.detect import parse_address

NOBODY = 65534
SOCKET = os.environ["MUNGE_SOCKET"]
NAME, PORT = parse_address(os.environ["HERRING_RENDEZVOUS"])
HOST = slurm.node_address(NAME, os.environ)


def answer(line: bytes) -> bytes:
    """Sends a line to the gate and returns its answer, empty if there is none."""
    deadline = time.monotonic() + 30
    while True:
        try:
            connection = socket.create_connection((HOST, PORT), 10)
            break
        except ConnectionRefusedError:
            assert time.monotonic() < deadline, "rank 0 has not come"
            time.sleep(0.05)
    with connection:
        connection.settimeout(10)
        received = b""
        try:
            connection.sendall(line + b"\n")
            while data := connection.recv(4096):
                received += data
        except ConnectionResetError:
            pass
        return received


def question(job: str) -> bytes:
    """Returns the request that a member of `job` sends."""
    content = {"ask": job, "nonce": "00" * 16}
    return munge.encode(json.dumps(content).encode(), SOCKET)


def shown(received: bytes) -> str:
    """Returns words for an answer of the gate."""
    return "an answer" if received else "nothing"


def main() -> None:
    """Sends all requests and prints which of them got an answer."""
    job = f"herring/{slurm.job_id(os.environ)}"
    used = question(f"{job}#0")
    print(f"this user, another job: {shown(answer(question('herring/999999#0')))}")
    received = answer(used)
    print(f"this user, this job: {shown(received)}", flush=True)
    child = os.fork()
    if child == 0:
        os.setuid(NOBODY)
        forged = [shown(answer(each)) for each in (b"GET / HTTP/1.1", used, question(f"{job}#0"))]
        print(f"stranger of another user: {', '.join(forged)}", flush=True)
        try:
            munge.decode(received.strip(), SOCKET)
            print("and can read what others get", flush=True)
        except munge.MungeError as error:
            print(f"and cannot read what others get: {error}", flush=True)
        os._exit(0)
    os.waitpid(child, 0)


if __name__ == "__main__":
    main()
