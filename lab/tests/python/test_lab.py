"""Emulated hosts reach each other, do not exceed their rate, and leave nothing behind."""

from __future__ import annotations

import pathlib
import signal
import subprocess
import sys

import warm
from emulated import namespaces, needs_hosts
from herring_lab.emulate import cluster

pytestmark = needs_hosts(rate_bits=1e8)

_SERVE = """
import socket
listener = socket.create_server(("0.0.0.0", 0))
print(listener.getsockname()[1], flush=True)
peer, _ = listener.accept()
total = 0
while data := peer.recv(1 << 20):
    total += len(data)
print(total, flush=True)
"""


def test_hosts_talk_and_the_link_counts():
    with cluster.Cluster(2, rate_bits=100e6, queue_seconds=0.02) as hosts:
        job = hosts.popen(1, [sys.executable, "-c", _SERVE], stdout=subprocess.PIPE, text=True)
        port = int(job.process.stdout.readline())
        send = (
            "import socket, time; start = time.monotonic();"
            f"peer = socket.create_connection(('{hosts.address(1)}', {port}));"
            "peer.sendall(bytes(2_000_000)); peer.shutdown(1); peer.recv(1);"
            "print(time.monotonic() - start)"
        )
        seconds = float(hosts.run(0, [sys.executable, "-c", send]))
        assert int(job.process.stdout.readline()) == 2_000_000
        # 2 MB at 100 Mbit/s take 160 ms, less the burst that the bucket lets through at once.
        assert seconds > 0.13
        sender, receiver = hosts.counters(0), hosts.counters(1)
        assert 2_000_000 < sender.sent_bytes < 2_200_000
        assert 2_000_000 < receiver.received_bytes < 2_200_000
        assert (hosts.total() - sender - receiver).sent_bytes == 0


def test_each_host_has_its_own_id_and_memory_is_seen():
    with cluster.Cluster(2) as hosts:
        code = ["sh", "-c", "echo $HERRING_HOST_ID"]
        assert hosts.run(0, code) != hosts.run(1, code)
        job = hosts.popen(0, ["sleep", "60"])
        assert job.poll_memory() > 0


def test_close_ends_processes_and_removes_namespaces():
    hosts = cluster.Cluster(3)
    identity = hosts.id
    job = hosts.popen(2, ["sleep", "600"])
    assert len(namespaces(identity)) == 4
    hosts.close()
    hosts.close()
    assert job.process.returncode == -signal.SIGKILL
    assert not namespaces(identity)
    assert not (cluster.LOCK_DIRECTORY / identity).exists()


def test_a_killed_run_is_removed_by_the_next_but_a_living_one_is_not():
    code = (
        "import sys; from herring_lab.emulate import Cluster; hosts = Cluster(2);"
        "job = hosts.popen(0, ['sleep', '600']);"
        "print(hosts.id, job.process.pid, flush=True); sys.stdin.read()"
    )
    run = warm.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        identity, pid = run.stdout.readline().split()
        with cluster.Cluster(1):
            assert len(namespaces(identity)) == 3, "a living cluster was removed"
        run.kill()
        run.wait()
        with cluster.Cluster(1):
            assert not namespaces(identity)
        stat = pathlib.Path(f"/proc/{pid}/stat")
        # The process is dead, but its new parent may not have collected it yet.
        assert not stat.exists() or stat.read_text().rsplit(")", 1)[1].split()[0] in "ZX"
    finally:
        run.kill()
        run.communicate()
