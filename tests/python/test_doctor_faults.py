"""`herring doctor` finds faults that are planted on emulated hosts, and names the right host."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from doctored import doctor, names_of, serious
from emulated import needs_hosts
from herring_lab.emulate import Cluster

pytestmark = [needs_hosts(rate_bits=1e8), pytest.mark.measures]

RATE = 100e6
PORTS = "30000-30010"
needs_strict_links = needs_hosts(rate_bits=1e8, strict=True, kernel=False)
CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
int clock_gettime(clockid_t clock, struct timespec* now) {
  int (*real)(clockid_t, struct timespec*) = dlsym(RTLD_NEXT, "clock_gettime");
  int status = real(clock, now);
  if (clock == CLOCK_REALTIME) now->tv_sec += 30;
  return status;
}
"""


# Faults that do not change what other hosts measure, and what is said of them.
OWN_FAULTS = {
    "h1": ["has Herring 0.0.7, and the others have"],
    "h2": ["On all ranks of the host HERRING_FLOWS is 4"],
    "h3": ["Each rank of the host has 1 of its", "CPU affinity"],
    "h4": ["A process may open 100 files"],
    "h5": ["The clock is 30 s ahead of"],
    "h6": ["eth0 has an MTU of 1500, and the others have 9000"],
    "h7": ["h1 does not resolve on h7"],
    "h8": ["h1 means 10.99.0.1, which is not an address of h1 (10.77.0.2)"],
}


def on(cluster: Cluster, host: int, *command: str) -> None:
    cluster.run(host, command, stderr=subprocess.STDOUT)


def found(report: dict[str, Any], subject: str, *words: str) -> bool:
    """Returns whether there is exactly one serious finding, on this host, with these words."""
    every = serious(report)
    assert len(every) == 1, every
    assert every[0][0] == subject, every
    return all(word in every[0][1] for word in words)


def test_all_is_well_on_hosts_without_a_fault(tmp_path: Path) -> None:
    with Cluster(3, rate_bits=RATE) as hosts:
        report = doctor(hosts, tmp_path, per_host=2)
    assert report["verdict"] == "ok", report["findings"]
    assert [host["name"] for host in report["hosts"]] == ["h0", "h1", "h2"]
    assert [host["ranks"] for host in report["hosts"]] == [[0, 1], [2, 3], [4, 5]]
    assert [host["address"] for host in report["hosts"]] == list(names_of(hosts).values())
    assert len(report["links"]) == 6
    for link in report["links"]:
        assert 0 < link["bits_per_second"] < 1.1 * RATE
        assert link["largest_packet"] == hosts.mtu
        assert list(link["ports"].values()) == ["open"]


@pytest.mark.thorough
def test_the_rates_of_links_are_fitted(tmp_path: Path) -> None:
    with Cluster(3, rate_bits=RATE, rates={2: RATE / 10}) as hosts:
        report = doctor(hosts, tmp_path, "--curve")
    for link in report["links"]:
        rate = RATE / 10 if "h2" in (link["from"], link["to"]) else RATE
        assert 0.85 * rate < link["fitted_bits_per_second"] < 1.15 * rate, link


def test_a_slow_link(tmp_path: Path) -> None:
    with Cluster(4, rate_bits=RATE, rates={2: RATE / 10}) as hosts:
        report = doctor(hosts, tmp_path)
    assert found(report, "h2", "sends", "receives", "Mbit/s")
    [one] = [each for each in report["findings"] if each["severity"] == "warning"]
    assert one["factor"] > 5  # a short queue and large packets leave TCP less than the rate
    assert "times as long" in one["helps"]


def test_the_odd_one_of_sixteen_hosts(tmp_path: Path) -> None:
    with Cluster(16, rate_bits=RATE / 2, rates={11: RATE / 20}) as hosts:
        report = doctor(hosts, tmp_path)
    slow = [one for one in serious(report) if "the others reach" in one[1]]
    assert [subject for subject, _ in slow] == ["h11"], serious(report)
    assert len(report["links"]) == 16 * 15 and not report["not_measured"]


@pytest.mark.parametrize("way", ["sends", "receives"])
def test_a_link_that_is_slow_in_one_direction(tmp_path: Path, way: str) -> None:
    with Cluster(4, rate_bits=RATE) as hosts:
        space, device = hosts.namespace(1), "eth0"
        if way == "receives":
            space, device = hosts._switch(0), "p1"
        hosts._shape(space, device, RATE / 4)
        report = doctor(hosts, tmp_path)
    assert found(report, "h1", f"The host {way} only 2")


def test_a_blocked_port(tmp_path: Path) -> None:
    with Cluster(3, rate_bits=RATE) as hosts:
        # The answers of these ports are dropped, so connections time out as behind a firewall.
        on(hosts, 1, "ip", "rule", "add", "ipproto", "tcp", "sport", PORTS, "blackhole")
        ports = {"HERRING_PORTS": PORTS}
        report = doctor(hosts, tmp_path, settings=dict.fromkeys(range(3), ports))
    assert report["verdict"] == "error"
    assert found(report, "h1", "TCP ports 30000-30001 of h1", "from h0 and h2", "no answer")
    assert "--dport 30000:30010" in report["findings"][0]["change"]


def test_a_switch_port_that_loses_large_packets(tmp_path: Path) -> None:
    with Cluster(4, rate_bits=RATE) as hosts:
        subprocess.run(
            ["ip", "-n", hosts._switch(0), "link", "set", "p2", "mtu", "1500"], check=True
        )
        report = doctor(hosts, tmp_path)
    assert report["verdict"] == "error"
    assert found(report, "h2", "9000 bytes get lost to and from h2", "1500 bytes arrive")


@needs_strict_links
def test_a_host_that_is_far_away(tmp_path: Path) -> None:
    with Cluster(4, rate_bits=RATE, delay="100us", delays={2: "10ms"}, kernel=False) as hosts:
        report = doctor(hosts, tmp_path)
    far = [one for one in serious(report) if "round trip" in one[1]]
    assert [subject for subject, _ in far] == ["h2"], serious(report)
    trip, unit = re.search(r"takes ([0-9.]+) (\w+),", far[0][1]).groups()
    assert unit == "ms" and float(trip) >= 20  # what delays a packet beside load comes on top


@needs_strict_links
def test_a_host_that_loses_packets(tmp_path: Path) -> None:
    with Cluster(4, rate_bits=RATE, losses={1: "5%"}, kernel=False) as hosts:
        report = doctor(hosts, tmp_path)
    lossy = [one for one in serious(report) if "small packets" in one[1]]
    assert [subject for subject, _ in lossy] == ["h1"], serious(report)


def test_small_socket_buffers(tmp_path: Path) -> None:
    with Cluster(3, rate_bits=RATE) as hosts:
        on(hosts, 2, "sh", "-c", "echo 4096 8192 16384 > /proc/sys/net/ipv4/tcp_rmem")
        report = doctor(hosts, tmp_path)
    buffers = [one for one in serious(report) if "buffer" in one[1]]
    assert [subject for subject, _ in buffers] == ["h2"], serious(report)
    assert {subject for subject, _ in serious(report)} == {"h2"}
    assert "16.4 kB at most (net.ipv4.tcp_rmem)" in buffers[0][1]


def test_a_rank_that_does_not_come(tmp_path: Path) -> None:
    with Cluster(3, rate_bits=RATE) as hosts:
        report = doctor(hosts, tmp_path, "--time-limit", "10", absent=[2])
    assert report["verdict"] == "error" and report["missing_ranks"] == [2]
    assert found(report, "rank 2", "Rank 2 of 3 did not reach rank 0")


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a compiler")
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_each_of_eight_hosts_has_its_own_fault(tmp_path: Path) -> None:
    about = tmp_path / "older" / "herring_dl-0.0.7.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: herring-dl\nVersion: 0.0.7\n")
    path = os.pathsep.join([str(about.parent), os.environ.get("PYTHONPATH", "")])
    (tmp_path / "clock.c").write_text(CLOCK)
    clock = tmp_path / "clock.so"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-o", clock, tmp_path / "clock.c", "-ldl"], check=True
    )
    core = min(os.sched_getaffinity(0))
    with Cluster(1 + len(OWN_FAULTS), rate_bits=RATE) as hosts:
        on(hosts, 6, "ip", "link", "set", "eth0", "mtu", "1500")
        known = names_of(hosts)
        report = doctor(
            hosts,
            tmp_path,
            settings={
                1: {"PYTHONPATH": path},
                2: {"HERRING_FLOWS": "4"},
                5: {"LD_PRELOAD": str(clock)},
            },
            before={3: f"taskset -p -c {core} $$ > /dev/null", 4: "ulimit -n 100"},
            names={
                7: {name: address for name, address in known.items() if name != "h1"},
                8: {**known, "h1": "10.99.0.1"},
            },
        )
    assert report["verdict"] == "error"  # a process may open too few files
    every = serious(report)
    assert sorted(subject for subject, _ in every) == sorted(OWN_FAULTS), every
    for subject, what in every:
        assert all(word in what for word in OWN_FAULTS[subject]), (subject, what)
