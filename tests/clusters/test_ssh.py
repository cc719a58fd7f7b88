"""Tests `herring run -H` with a real ssh to emulated hosts, and what may go wrong on the way."""

from __future__ import annotations

import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

import pytest
from sshd import SshCluster, gone, why_no_sshd

reason = why_no_sshd()
pytestmark = [
    pytest.mark.skipif(reason is not None, reason=str(reason)),
    pytest.mark.timeout(120),
]

WORKER = ["--", sys.executable, str(pathlib.Path(__file__).with_name("worker.py"))]
# Prints the IDs of two processes and waits. For ranks above 0, one is in a session of its own.
SCRIPT = "$([ $HERRING_RANK = 0 ] || echo setsid) sleep 1000 & echo pid=$! pid=$$; exec sleep 1000"
WAIT = ["--", "bash", "-c", SCRIPT]
# Runs all-reduces until it is ended.
LOOP = """
import herring, numpy as np, os
herring.init()
print(f"pid={os.getpid()}", flush=True)
array = np.ones(300_000, "f4")
while True:
    herring.allreduce(array)
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[SshCluster]:
    with tempfile.TemporaryDirectory(prefix="herring-ssh-") as folder:
        with SshCluster(pathlib.Path(folder)) as running:
            yield running


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Checks that a test leaves no shared memory behind."""
    before = set(os.listdir("/dev/shm"))
    yield
    deadline = time.monotonic() + 20
    while left := {name for name in os.listdir("/dev/shm") if "herring" in name} - before:
        assert time.monotonic() < deadline, left


def check(output: str, local_sizes: list[int], dedicated: int = 0) -> None:
    """Asserts that ranks on nodes of these sizes joined one job with `dedicated` servers."""
    found = re.findall(r"^\[\d+\] rank (\d+)/\d+ local \d+/(\d+) (node .*)", output, re.MULTILINE)
    nodes = len(local_sizes)
    places = [(node, size) for node, size in enumerate(local_sizes) for _ in range(size)]
    assert sorted((int(rank), int(local), rest) for rank, local, rest in found) == [
        (rank, size, f"node {node}/{nodes} dedicated {dedicated}")
        for rank, (node, size) in enumerate(places)
    ], output


def pids(process: subprocess.Popen[str], count: int) -> list[int]:
    """Returns the next `count` process IDs that a job prints."""
    found: list[int] = []
    while len(found) < count:
        line = process.stdout.readline()
        assert line, found
        found += [int(number) for number in re.findall(r"pid=(\d+)", line)]
    return found


@pytest.mark.parametrize(
    ("hosts", "more", "local_sizes", "dedicated"),
    [
        ("herring-host0:1,herring-host1:2,herring-host2:1", [], [1, 2, 1], 0),
        ("herring-host2:1,herring-host1:1", [], [1, 1], 0),
        ("localhost:2,herring-host1:2", [], [2, 2], 0),
        ("herring-host1:2,localhost:1", [], [2, 1], 0),
        ("ADDRESS0:1,ADDRESS1:1", [], [1, 1], 0),
        ("herring-host1:2", [], [2], 0),
        ("herring-host0:2,herring-host1:2,herring-host2,herring-host3", ["-n4"], [2, 2], 2),
        ("localhost:1,herring-host1:1", [], [1, 1], 2),
    ],
    ids=["names", "order", "first-here", "last-here", "addresses", "one", "free-hosts", "beside"],
)
def test_a_job(
    cluster: SshCluster, hosts: str, more: list[str], local_sizes: list[int], dedicated: int
) -> None:
    for number in range(2):
        hosts = hosts.replace(f"ADDRESS{number}", cluster.address(number))
    status, output = cluster.run(
        *("-H", hosts, *more, "--servers", str(dedicated), "--start-timeout", "60", *WORKER)
    )
    assert status == 0, output
    check(output, local_sizes, dedicated)


def test_hostfile_port_key_interface_and_output(cluster: SshCluster) -> None:
    path = cluster.folder / "hosts"
    path.write_text("herring-host1 slots=1\nherring-host2 slots=1\n")
    status, output = cluster.run(
        *("--hostfile", str(path), "-p", str(cluster.port), "--network-interface", "eth0"),
        *("-i", str(cluster.folder / "user_key"), "--output-filename", "printed", *WORKER),
        # The port and key in this configuration are wrong.
        ssh=cluster.ssh("ssh_config_bare"),
    )
    assert status == 0, output
    check(output, [1, 1])
    kept = (cluster.folder / "printed" / "rank.1" / "stdout").read_text()
    assert kept.startswith("rank 1/2 local 0/1 node 1/2")


def test_much_output(cluster: SshCluster) -> None:
    script = "head -c 6000000 /dev/zero | tr '\\0' x | fold -w 60"
    status, output = cluster.run("-H", "herring-host1:1,herring-host2:1", "--", "sh", "-c", script)
    assert status == 0
    assert output.count("x") == 12_000_000
    assert set(output.splitlines()) == {f"[{rank}] {'x' * 60}" for rank in range(2)}


# If a host cannot take part, one line names the host, and nothing is started.


@pytest.mark.parametrize(
    ("hosts", "more", "config", "words"),
    [
        ("10.77.0.200:1", [], "ssh_config", ["10.77.0.200 cannot be reached"]),
        ("herring-host2:1", ["-p", "9"], "ssh_config", ["herring-host", "cannot be reached"]),
        ("herring-host2:1", [], "ssh_config_other_key", ["refuses the login", "ssh-copy-id"]),
        ("herring-host2:1", [], "ssh_config_unknown_host", ["not known to ssh"]),
        ("herring-host9:1", [], "ssh_config", ["herring-host9 has no address"]),
        (
            "herring-host2:1",
            ["--remote-python", "/usr/bin/false"],
            "ssh_config",
            ["herring-host", "status 1"],
        ),
        (
            "herring-host2:1",
            ["--remote-python", "/no/python"],
            "ssh_config",
            ["has no Herring at /no/python", "--remote-python"],
        ),
    ],
    ids=["unreachable", "refused", "key", "unknown", "no-name", "no-python", "no-herring"],
)
def test_a_host_that_cannot_take_part(
    cluster: SshCluster, hosts: str, more: list[str], config: str, words: list[str]
) -> None:
    status, output = cluster.run(
        *("-H", f"localhost:1,herring-host1:1,{hosts}", "--start-timeout", "8", *more),
        *("--", "echo", "started"),
        ssh=cluster.ssh(config),
        seconds=30,
    )
    assert status == 255, output
    assert "started" not in output
    assert output.count("\n") == 1, output
    for word in words:
        assert word in output, output


# These tests end jobs in several ways. Every job has ranks on this host and two others.

HOSTS = ["-H", "localhost:1,herring-host1:2,herring-host2:1", "--grace", "2"]


@pytest.fixture
def waiting(cluster: SshCluster) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """Yields a job that waits, and the IDs of its processes."""
    process = cluster.start(*HOSTS, *WAIT)
    yield process, pids(process, 8)
    process.kill()
    process.communicate()


def test_a_rank_that_dies_ends_the_job(cluster: SshCluster) -> None:
    process = cluster.start(*HOSTS, *WAIT)
    found = pids(process, 8)
    victim = next(
        pid for pid in found if "sleep" in pathlib.Path(f"/proc/{pid}/cmdline").read_text()
        and b"HERRING_RANK=3" in pathlib.Path(f"/proc/{pid}/environ").read_bytes()
        and os.getpgid(pid) == pid and os.getsid(pid) != pid
    )  # fmt: skip
    os.kill(victim, signal.SIGKILL)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGKILL, output
    assert re.search(r"rank 3 \(process \d+ on herring-host2\) was killed by SIGKILL", output)
    assert gone(found)


def test_exit_status_of_a_rank(cluster: SshCluster) -> None:
    script = "[ $HERRING_RANK = 1 ] && exit 7; exec sleep 1000"
    status, output = cluster.run(*HOSTS, "--", "bash", "-c", script, seconds=30)
    assert status == 7
    assert re.search(r"rank 1 \(process \d+ on herring-host1\) exited with status 7", output)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c(waiting: tuple[subprocess.Popen[str], list[int]], number: signal.Signals) -> None:
    process, found = waiting
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert gone(found)


def test_kill_9_of_the_launcher(waiting: tuple[subprocess.Popen[str], list[int]]) -> None:
    process, found = waiting
    process.kill()
    assert gone(found)


def test_sshd_is_killed(
    cluster: SshCluster, waiting: tuple[subprocess.Popen[str], list[int]]
) -> None:
    process, found = waiting
    cluster.kill_sessions(2)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 255, output
    assert "herring-host2 is lost: its ssh has ended" in output
    assert gone(found)


def test_ssh_is_killed(
    cluster: SshCluster, waiting: tuple[subprocess.Popen[str], list[int]]
) -> None:
    process, found = waiting
    children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    ssh = [
        pid
        for pid in map(int, children.split())
        if pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ssh\0")
    ]
    assert len(ssh) == 2
    os.kill(ssh[0], signal.SIGKILL)
    process.communicate(timeout=30)
    assert process.returncode == 255
    assert gone(found)


def test_a_training_that_loses_its_network(cluster: SshCluster) -> None:
    process = cluster.start(*HOSTS, "--", sys.executable, "-c", LOOP)
    try:
        found = pids(process, 4)
        cluster.set_link(2, up=False)
        try:
            output, _ = process.communicate(timeout=60)
            assert process.returncode != 0
            assert "[herring run]" in output
            # Ranks on the disconnected host end too, because they lose the other ranks.
            assert gone(found)
        finally:
            cluster.set_link(2, up=True)
        # The processes of sshd that served the job end when the network is back.
        assert gone(cluster.sessions(2))
    finally:
        process.kill()
        process.communicate()


def test_all_is_well_afterwards(cluster: SshCluster) -> None:
    status, output = cluster.run(*HOSTS, *WORKER)
    assert status == 0, output
    check(output, [1, 2, 1])
