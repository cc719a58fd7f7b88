"""Measures the links of a cluster, so that links that are too slow give no figures."""

from __future__ import annotations

import dataclasses
import pathlib
import subprocess
import sys
import time

from herring.base.units import show_rate
from herring_lab.emulate.cluster import Cluster, ClusterError

_PROBE = pathlib.Path(__file__).with_name("probe.py")
_PORT = 29390
# The share of a link's rate that payload must reach. It leaves ample room for the headers of
# Ethernet, IP and TCP, which take 1 % with jumbo frames.
_ENOUGH = 0.9


@dataclasses.dataclass(frozen=True)
class Links:
    """Measurements while all hosts sent and received at the same time.

    Attributes:
      bits_per_second: the payload that arrived at each host.
      expected: the least that should arrive at each host; None if its links have no limit or are
        strict.
      round_trip_seconds: a round trip of one byte over TCP between hosts 0 and 1, measured while
        the links were idle.
    """

    bits_per_second: list[float]
    expected: list[float | None]
    round_trip_seconds: float

    def slow(self) -> list[int]:
        """Returns the hosts that got less than expected."""
        pairs = enumerate(zip(self.bits_per_second, self.expected))
        return [host for host, (got, wanted) in pairs if wanted is not None and got < wanted]

    def text(self) -> str:
        """Returns a line that describes the measurements."""
        low, high = min(self.bits_per_second), max(self.bits_per_second)
        rates = show_rate(low) if high < 1.05 * low else f"{show_rate(low)} to {show_rate(high)}"
        return (
            f"{len(self.bits_per_second)} hosts, all sending and receiving at once: {rates} each; "
            f"round trip {self.round_trip_seconds * 1e3:.3f} ms"
        )


def check_links(cluster: Cluster, seconds: float = 1.5) -> Links:
    """Measures all links of a cluster at the same time, in a ring over its hosts.

    Raises:
      ClusterError: a probe failed, or there is only one host.
    """
    size = cluster.size
    if size < 2:
        raise ClusterError("a single host has no link to measure")
    seconds += 20 * cluster.longest_delay  # TCP needs some round trips to grow its window
    jobs = []
    for host in range(size):
        argv = [sys.executable, "-S", str(_PROBE), cluster.address(host)]
        argv += [cluster.address((host + 1) % size), str(_PORT), str(seconds)]
        argv += ["1" if host == 0 else "0"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        jobs.append(cluster.popen(host, argv, text=True, **pipes))
    for job in jobs:
        if job.process.stdout.readline().strip() != "ready":
            raise ClusterError(f"host {job.host}: {job.process.stderr.read().strip()[-500:]}")
    start = (
        time.monotonic() + 0.3 + 10 * cluster.longest_delay
    )  # connecting takes a few round trips
    for job in jobs:
        job.process.stdin.write(f"{start}\n")
        job.process.stdin.flush()
    rates, round_trip = [], 0.0
    for job in jobs:
        output, errors = job.process.communicate(timeout=seconds + 10 * cluster.longest_delay + 30)
        if job.process.returncode != 0:
            raise ClusterError(f"host {job.host}: {errors.strip()[-500:]}")
        rate, took = map(float, output.split())
        rates.append(rate)
        round_trip = max(round_trip, took)
    expected = []
    # Strict links are judged by the lateness of packets (`Cluster.link_report`). The rate that TCP
    # reaches in the first second does not count, because its acknowledgements wait behind the data
    # of the other direction.
    for host in range(size):
        narrowest = None if cluster.strict else cluster.rate_between((host - 1) % size, host)
        expected.append(None if narrowest is None else _ENOUGH * narrowest)
    return Links(rates, expected, round_trip)
