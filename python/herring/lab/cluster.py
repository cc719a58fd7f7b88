"""Emulated hosts: one network namespace each, joined by a bridge with token buckets on its ports.

The bridge lives in a namespace of its own, so two clusters never meet, and nothing shows in the
network of the machine itself::

    host 0 [eth0 tbf] ---- [tbf p0]  +--------+
    host 1 [eth0 tbf] ---- [tbf p1]  | switch |
    ...                              +--------+

``eth0`` shapes what a host sends, ``pN`` what the switch sends to host N. The queue of ``pN`` is
the buffer that an incast overruns.

With ``paths`` there are two such switches, the leaves, which are routers too. Each path is a spine
between them, a link with a rate of its own; which one a connection takes is a hash of its addresses
and ports, as in a data centre::

    hosts 0, 2, ... -- leaf 0 ==[tbf]== spine 0, 1, ... ==[tbf]== leaf 1 -- hosts 1, 3, ...

Every cluster holds a lock file in ``/run/herring-lab`` for as long as its process lives. Whoever
makes a cluster first removes those whose lock is free: a killed run leaves nothing behind for long.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import pathlib
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

LOCK_DIRECTORY = pathlib.Path("/run/herring-lab")
MTU = 9000
BURST = "64kb"
_PREFIX = "herring-"


class ClusterError(RuntimeError):
    """An emulated cluster could not be made; the message holds the tool's own words."""


@dataclasses.dataclass(frozen=True)
class HostCounters:
    """What one host's link and TCP stack have counted since the cluster was made.

    Attributes:
      sent_bytes: bytes the host's interface sent, Ethernet headers included.
      received_bytes: bytes the host's interface received.
      switch_drops: packets the switch dropped on the way to this host (queue full).
      retransmits: TCP segments the host sent again.
      timeouts: TCP retransmission time-outs of the host.
    """

    sent_bytes: int
    received_bytes: int
    switch_drops: int
    retransmits: int
    timeouts: int

    def __sub__(self, before: HostCounters) -> HostCounters:
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(before))
        return HostCounters(*(now - then for now, then in pairs))

    def __add__(self, other: HostCounters) -> HostCounters:
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(other))
        return HostCounters(*(one + two for one, two in pairs))


class Job:
    """A process on an emulated host, and the highest memory use seen of it.

    Attributes:
      process: the ``subprocess.Popen``.
      host: number of the host it runs on.
      name: what to call it in messages.
    """

    def __init__(self, process: subprocess.Popen[Any], host: int, name: str) -> None:
        self.process = process
        self.host = host
        self.name = name
        self.peak_bytes = 0

    def poll_memory(self) -> int:
        """Returns the peak resident size in bytes known so far (0 before the first reading).

        The kernel keeps the mark itself but drops it with the process: call it now and then.
        """
        with contextlib.suppress(OSError, ValueError):
            for line in pathlib.Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
                if line.startswith("VmHWM:"):
                    self.peak_bytes = max(self.peak_bytes, int(line.split()[1]) * 1024)
        return self.peak_bytes


class Cluster:
    """``hosts`` emulated machines on one switch. Use it as a context manager.

    Args:
      hosts: how many, 1 to 250.
      rate_bits: rate of every link in bits per second, in each direction; None for no limit.
      queue_seconds: how long a packet may wait in a full queue: the depth of the queues of hosts
        and switch ports, in seconds at the link's rate. Unused without a rate.
      mtu: bytes.
      rates: bits per second of single hosts' links, where they differ (one slow card).
      paths: leaf and spine instead of one switch: the rate of each spine in bits per second.

    Raises:
      ClusterError: tools or rights are missing, or the kernel refuses.
    """

    def __init__(
        self,
        hosts: int,
        rate_bits: float | None = None,
        queue_seconds: float = 0.020,
        mtu: int = MTU,
        rates: Mapping[int, float] | None = None,
        paths: Sequence[float] = (),
    ) -> None:
        if not 1 <= hosts <= 250:
            raise ClusterError(f"a cluster has 1 to 250 hosts, not {hosts}")
        if not 576 <= mtu <= 65535:
            raise ClusterError(f"an MTU is 576 to 65535 bytes, not {mtu}")
        if len(paths) > 64:
            raise ClusterError(f"a leaf has 1 to 64 spines, not {len(paths)}")
        for host in rates or {}:
            if not 0 <= host < hosts:
                raise ClusterError(f"there is no host {host}: they are 0 to {hosts - 1}")
        for tool in ("ip", "tc", "nsenter", "setpriv"):
            if shutil.which(tool) is None:
                raise ClusterError(f"{tool} is missing (packages iproute2 and util-linux)")
        if os.geteuid() != 0:
            raise ClusterError("emulated hosts need root: network namespaces and token buckets")
        self.size = hosts
        self.rate_bits = rate_bits
        self.queue_seconds = queue_seconds
        self.paths = tuple(paths)
        self._rates = dict(rates or {})
        self._jobs: list[Job] = []
        self._closed = False
        remove_stale()
        self.id, self._lock = _take_id()
        try:
            self._build(mtu)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def namespace(self, host: int) -> str:
        """Returns the name of a host's network namespace."""
        return f"{_PREFIX}{self.id}-h{host}"

    def address(self, host: int) -> str:
        """Returns a host's IPv4 address. It means the same host on every host of this cluster."""
        return f"10.77.{self._leaf(host)}.{host + 1}"

    def rate(self, host: int) -> float | None:
        """Returns the rate of a host's link in bits per second; None: no limit."""
        return self._rates.get(host, self.rate_bits)

    def rate_between(self, sender: int, receiver: int) -> float | None:
        """Returns the least that one connection gets if it is alone; None: no limit."""
        rates = [self.rate(sender), self.rate(receiver)]
        if self._leaf(sender) != self._leaf(receiver):
            # All hosts of a leaf may have hashed to the same spine.
            rates += [min(self.paths) / ((self.size + 1) // 2)]
        return min((rate for rate in rates if rate is not None), default=None)

    def host_id(self, host: int) -> str:
        """Returns what ``HERRING_HOST_ID`` is set to on a host."""
        return f"{self.id}-h{host}"

    def popen(
        self,
        host: int,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        *,
        name: str = "",
        **options: Any,
    ) -> Job:
        """Starts a command on a host. It dies with this process, whatever ends it.

        Args:
          host: number of the host.
          argv: the command and its arguments.
          env: variables added to this process's own; ``HERRING_HOST_ID`` is set if not in it.
          name: how to call the process in messages; by default its command.
          **options: for ``subprocess.Popen``.
        """
        environment = {**os.environ, "HERRING_HOST_ID": self.host_id(host), **(env or {})}
        # In this order: the kernel clears the death signal when credentials change.
        prefix = ["nsenter", f"--net=/run/netns/{self.namespace(host)}", "setpriv", "--pdeathsig"]
        process = subprocess.Popen(
            [*prefix, "KILL", *argv], env=environment, start_new_session=True, **options
        )
        job = Job(process, host, name or argv[0])
        self._jobs.append(job)
        return job

    def run(self, host: int, argv: Sequence[str], **options: Any) -> str:
        """Runs a command on a host to its end and returns its standard output."""
        job = self.popen(host, argv, stdout=subprocess.PIPE, text=True, **options)
        output, _ = job.process.communicate()
        self._jobs.remove(job)
        if job.process.returncode != 0:
            raise ClusterError(
                f"{' '.join(argv)} on host {host} ended with {job.process.returncode}"
            )
        return output

    def counters(self, host: int) -> HostCounters:
        """Reads the counters of a host's link, its switch port and its TCP stack."""
        # /sys shows the namespace of whoever mounted it: read the link through netlink instead.
        show = ["-s", "-j", "link", "show", "eth0"]
        link = json.loads(_tool(["ip", "-n", self.namespace(host), *show]))[0]["stats64"]
        show = ["-s", "-j", "qdisc", "show", "dev", f"p{host}"]
        queues = json.loads(_tool(["tc", "-n", self._switch(self._leaf(host)), *show]))
        tcp = _parse_proc_tables(self.run(host, ["cat", "/proc/net/snmp", "/proc/net/netstat"]))
        return HostCounters(
            sent_bytes=link["tx"]["bytes"],
            received_bytes=link["rx"]["bytes"],
            switch_drops=sum(queue.get("drops", 0) for queue in queues),
            retransmits=tcp.get("RetransSegs", 0),
            timeouts=tcp.get("TCPTimeouts", 0),
        )

    def path_bytes(self, path: int) -> int:
        """Returns the bytes that a spine has carried, both directions together."""
        total = 0
        for device in ("l0", "l1"):
            show = ["-s", "-j", "link", "show", device]
            link = json.loads(_tool(["ip", "-n", self._spine(path), *show]))[0]["stats64"]
            total += link["tx"]["bytes"]
        return total

    def total(self, hosts: Iterable[int] | None = None) -> HostCounters:
        """Returns the sum of the counters of some hosts, by default of all."""
        total = HostCounters(0, 0, 0, 0, 0)
        for host in range(self.size) if hosts is None else hosts:
            total = total + self.counters(host)
        return total

    def close(self) -> None:
        """Ends what still runs on the hosts and removes the cluster. Harmless to repeat."""
        if self._closed:
            return
        self._closed = True
        # An impatient second Ctrl-C must not leave half a cluster.
        with _signals_held():
            _remove(self.id)
            for job in self._jobs:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    job.process.wait(timeout=5)
                for stream in (job.process.stdin, job.process.stdout, job.process.stderr):
                    if stream is not None:
                        with contextlib.suppress(OSError):
                            stream.close()
            self._lock_path.unlink(missing_ok=True)
            os.close(self._lock)

    def _leaf(self, host: int) -> int:
        return host % 2 if self.paths else 0

    def _switch(self, leaf: int) -> str:
        return f"{_PREFIX}{self.id}-sw{leaf}"

    def _spine(self, path: int) -> str:
        return f"{_PREFIX}{self.id}-sp{path}"

    @property
    def _lock_path(self) -> pathlib.Path:
        return LOCK_DIRECTORY / self.id

    def _build(self, mtu: int) -> None:
        leaves = (0, 1) if self.paths else (0,)
        spaces = [self._switch(leaf) for leaf in leaves]
        spaces += [self._spine(path) for path in range(len(self.paths))]
        spaces += [self.namespace(host) for host in range(self.size)]
        _batch(["ip", "-batch", "-"], [f"netns add {name}" for name in spaces])
        for leaf in leaves:
            hosts = [host for host in range(self.size) if self._leaf(host) == leaf]
            self._build_switch(leaf, hosts, mtu)
        for host in range(self.size):
            commands = [
                "link set lo up",
                f"addr add {self.address(host)}/24 dev eth0",
                "link set eth0 addrgenmode none up",
            ]
            if self.paths:
                commands.append(f"route add default via 10.77.{self._leaf(host)}.254")
            _batch(["ip", "-n", self.namespace(host), "-batch", "-"], commands)
            self._shape(self.namespace(host), "eth0", self.rate(host))
            self._shape(self._switch(self._leaf(host)), f"p{host}", self.rate(host))
        if self.paths:
            self._build_spines(mtu)

    def _build_switch(self, leaf: int, hosts: Sequence[int], mtu: int) -> None:
        commands = ["link add br0 type bridge mcast_snooping 0", "link set br0 up"]
        for host in hosts:
            far = f"eth0 mtu {mtu} netns {self.namespace(host)}"
            commands += [
                f"link add p{host} mtu {mtu} type veth peer name {far}",
                f"link set p{host} master br0 addrgenmode none up",
            ]
        if self.paths:
            commands += [f"link set br0 mtu {mtu}", f"addr add 10.77.{leaf}.254/24 dev br0"]
        _batch(["ip", "-n", self._switch(leaf), "-batch", "-"], commands)

    def _build_spines(self, mtu: int) -> None:
        for path, rate in enumerate(self.paths):
            spine = self._spine(path)
            self._route_here(spine)
            for leaf in (0, 1):
                near, far = f"10.78.{2 * path + leaf}.1", f"10.78.{2 * path + leaf}.2"
                peer = f"l{leaf} mtu {mtu} netns {spine}"
                up = [
                    f"link add s{path} mtu {mtu} type veth peer name {peer}",
                    f"addr add {near}/30 dev s{path}",
                    f"link set s{path} addrgenmode none up",
                ]
                _batch(["ip", "-n", self._switch(leaf), "-batch", "-"], up)
                down = [
                    f"addr add {far}/30 dev l{leaf}",
                    f"link set l{leaf} addrgenmode none up",
                    f"route add 10.77.{leaf}.0/24 via {near}",
                ]
                _batch(["ip", "-n", spine, "-batch", "-"], down)
                self._shape(self._switch(leaf), f"s{path}", rate)
                self._shape(spine, f"l{leaf}", rate)
        for leaf in (0, 1):
            self._route_here(self._switch(leaf))
            hops = " ".join(
                f"nexthop via 10.78.{2 * path + leaf}.2 dev s{path}"
                for path in range(len(self.paths))
            )
            route = ["route", "add", f"10.77.{1 - leaf}.0/24", *hops.split()]
            _tool(["ip", "-n", self._switch(leaf), *route])

    def _route_here(self, namespace: str) -> None:
        settings = {"ip_forward": 1, "fib_multipath_hash_policy": 1, "conf/all/rp_filter": 0}
        script = "; ".join(f"echo {v} > /proc/sys/net/ipv4/{k}" for k, v in settings.items())
        _tool(["nsenter", f"--net=/run/netns/{namespace}", "sh", "-c", script])

    def _shape(self, namespace: str, device: str, rate: float | None) -> None:
        if rate is not None:
            limit = f"tbf rate {int(rate)}bit burst {BURST} latency {self.queue_seconds * 1e3:g}ms"
            _tool(["tc", "-n", namespace, "qdisc", "add", "dev", device, "root", *limit.split()])


def remove_stale() -> list[str]:
    """Removes the clusters of processes that died without closing theirs; returns their ids."""
    removed = []
    if not LOCK_DIRECTORY.is_dir():
        return removed
    for path in LOCK_DIRECTORY.iterdir():
        try:
            lock = os.open(path, os.O_RDWR)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        else:
            _remove(path.name)
            path.unlink(missing_ok=True)
            removed.append(path.name)
        finally:
            os.close(lock)
    return removed


def _take_id() -> tuple[str, int]:
    """Returns an unused id and the descriptor that holds its lock."""
    LOCK_DIRECTORY.mkdir(mode=0o755, exist_ok=True)
    while True:
        identity = secrets.token_hex(4)
        path = LOCK_DIRECTORY / identity
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Between the two calls another process may have taken the file for a stale one.
            if os.stat(path).st_ino == os.fstat(lock).st_ino:
                return identity, lock
        except (BlockingIOError, FileNotFoundError):
            pass
        os.close(lock)


def _remove(identity: str) -> None:
    """Kills whatever runs in a cluster's namespaces and deletes them."""
    directory = pathlib.Path("/run/netns")
    names = [path.name for path in directory.glob(f"{_PREFIX}{identity}-*")]
    for name in names:
        listing = subprocess.run(
            ["ip", "netns", "pids", name], capture_output=True, text=True, check=False
        )
        for word in listing.stdout.split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(word), signal.SIGKILL)
    for name in names:
        # A namespace made by a cluster that is still being built may not be deletable at once.
        for _ in range(3):
            done = subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
            if done.returncode == 0 or not (directory / name).exists():
                break
            time.sleep(0.05)


def _tool(argv: Sequence[str], text: str | None = None) -> str:
    done = subprocess.run(argv, input=text, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ClusterError(f"{' '.join(argv)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def _batch(argv: Sequence[str], commands: Sequence[str]) -> None:
    _tool(argv, "\n".join(commands) + "\n")


def _parse_proc_tables(text: str) -> dict[str, int]:
    """Parses /proc/net/snmp and netstat: a line of names, then a line of numbers, by protocol."""
    found: dict[str, int] = {}
    lines = text.splitlines()
    for names, numbers in zip(lines[::2], lines[1::2]):
        protocol = names.split(":")[0]
        if protocol in ("Tcp", "TcpExt"):
            found.update(zip(names.split()[1:], map(int, numbers.split()[1:])))
    return found


@contextlib.contextmanager
def _signals_held() -> Any:
    held = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, held)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
