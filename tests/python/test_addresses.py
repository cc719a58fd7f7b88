"""Jobs in network namespaces that lack 127.0.0.1, ::1 or IPv4, or whose loopback is down."""

from __future__ import annotations

import functools
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SUM = (
    "import herring, numpy as np; herring.init(); "
    "total = herring.allreduce(np.ones(70000, np.float32), 'sum')[0]; "
    "print(f'sum {total}\\n', end='')"  # one write, because ranks share the output
)
SCRIPT = [sys.executable, "-c", SUM]
RUN = [sys.executable, "-m", "herring.command.cli", "run", "--timeout", "600", "-n", "2"]
IPV6_ONLY = "ip link set lo up; ip addr del 127.0.0.1/8 dev lo"


def in_namespace(setup: str, command: str) -> subprocess.CompletedProcess[str]:
    """Runs `setup` and a shell command in a new network and mount namespace."""
    return subprocess.run(
        ["unshare", "--net", "--mount", "sh", "-c", f"set -e; {setup}; {command}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )


@functools.lru_cache
def possible() -> bool:
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        return False
    return in_namespace(IPV6_ONLY, "ip -6 addr show dev lo | grep -q ::1").returncode == 0


@pytest.fixture(autouse=True)
def _needs_namespaces() -> None:
    if not possible():
        pytest.skip("namespaces with IPv6 cannot be made here")


@pytest.mark.parametrize("setup", [IPV6_ONLY, "ip link set lo up; ip addr del ::1/128 dev lo"])
@pytest.mark.parametrize(
    "command", [SCRIPT, [*RUN, "--", *SCRIPT], [*RUN, "--servers", "1", "--", *SCRIPT]]
)
def test_one_family_of_addresses_is_enough(setup: str, command: list[str]) -> None:
    done = in_namespace(setup, shlex.join(command))
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("sum") == (1 if command is SCRIPT else 2), done.stdout


def test_ranks_that_find_each_other_by_a_note_without_127_0_0_1() -> None:
    variables = "OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_SIZE=2"
    ranks = [f"OMPI_COMM_WORLD_RANK={r} OMPI_COMM_WORLD_LOCAL_RANK={r}" for r in range(2)]
    script = shlex.join(SCRIPT)
    done = in_namespace(
        IPV6_ONLY, f"{variables} {ranks[1]} {script} & {variables} {ranks[0]} {script}; wait $!"
    )
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("sum 2.0") == 2, done.stdout


@pytest.mark.parametrize("command", [SCRIPT, [*RUN, "--", *SCRIPT]])
def test_a_loopback_that_is_down_is_said_at_once(command: list[str]) -> None:
    done = in_namespace("true", shlex.join(command))
    assert done.returncode != 0
    assert "loopback interface is down or has neither 127.0.0.1 nor ::1" in done.stdout, done.stdout
    assert "ip link set lo up" in done.stdout


def test_a_host_without_ipv4_whose_name_stands_for_127_0_1_1(tmp_path: Path) -> None:
    """Debian maps the host's name to 127.0.1.1; rank 0 must listen where the others connect."""
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost\n127.0.1.1 first\n::1 localhost\n")
    setup = (
        f"mount --bind {hosts} /etc/hosts; ip link set lo up; ip link add v0 type veth peer v1; "
        "ip link set v0 up; ip link set v1 up; ip -6 addr add 2001:db8::5/64 dev v0 nodad"
    )
    script = shlex.join(SCRIPT)
    job = "HERRING_RENDEZVOUS=first:29777 HERRING_SIZE=2 HERRING_CONNECT_TIMEOUT=600"
    job += f" HERRING_SECRET={'ab' * 32}"
    done = in_namespace(
        setup, f"{job} HERRING_RANK=1 {script} & {job} HERRING_RANK=0 {script}; wait $!"
    )
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("sum 2.0") == 2, done.stdout
