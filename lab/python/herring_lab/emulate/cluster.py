"""Emulates hosts: network namespaces, joined by a bridge with token buckets on its ports.

The bridge has a namespace of its own. So clusters never see each other, and the machine's own
network does not change::

    host 0 [eth0 tbf] ---- [tbf p0]  +--------+
    host 1 [eth0 tbf] ---- [tbf p1]  | switch |
    ...                              +--------+

``eth0`` shapes the packets that a host sends, and ``pN`` those that the switch sends to host N. The
queue of ``pN`` is the buffer that an incast overruns.

With ``paths`` there are two such switches, the leaves, which are also routers. Each path is a spine
between them, a link with a rate of its own. A hash of its addresses and ports assigns each
connection to a spine, as in a data centre::

    hosts 0, 2, ... -- leaf 0 ==[tbf]== spine 0, 1, ... ==[tbf]== leaf 1 -- hosts 1, 3, ...

Strict links, and paths with delay, jitter and loss, work differently: ``eth0`` is a TAP device, and
`herring_lab.emulate.strict` is the switch and all links.

Every cluster locks a file in ``/run/herring-lab`` for as long as its process lives. A new cluster
first removes all clusters whose lock is free, so a killed run leaves nothing behind for long.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import signal
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from herring.errors import ConfigurationError
from herring_lab.emulate import netem
from herring_lab.emulate.hosts import HostCounters, Job
from herring_lab.emulate.limits import (
    Amount,
    require_host,
    require_hosts,
    require_mtu,
    require_queue,
    require_rate,
    require_seed,
    require_spines,
)
from herring_lab.emulate.links import StrictLinks
from herring_lab.emulate.namespaces import (
    LOCK_DIRECTORY,
    PREFIX,
    ClusterError,
    parse_proc_tables,
    remove,
    remove_stale,
    run_batch,
    run_tool,
    signals_held,
    signals_unwind,
    take_id,
)
from herring_lab.emulate.paths import Between, Paths
from herring_lab.emulate.strict import LateLinksError, LinkReport, Path

__all__ = [
    "BURST_BYTES",
    "LOCK_DIRECTORY",
    "MTU",
    "Cluster",
    "ClusterError",
    "HostCounters",
    "Job",
    "LateLinksError",
    "remove_stale",
    "signals_unwind",
]

MTU = 9000
BURST_BYTES = 1 << 16
BURST = f"{BURST_BYTES}b"  # tc's b are bytes


class Cluster:
    """A cluster of emulated hosts, to be used as a context manager.

    Args:
      hosts: the number of hosts, 1 to 250.
      rate_bits: rate of every link in bits per second, in each direction; None: no limit.
      queue_seconds: the most time that a packet may wait in a queue of a host or a switch port.
        Queues have this depth at the link's rate; without a rate the value is not used.
      mtu: bytes of the largest IP packet.
      rates: rates of single hosts' links in bits per second, where they differ (one slow card).
      paths: spines between two leaves, instead of one switch. Each is a rate in bits per second or
        a `Path` with delay, jitter and loss, such as a thin, long link between two sites.
      strict: whether links are strict: a packet takes length / rate on its host's egress and again
        on the switch's port, and there are no bursts. None: strict if `mtus`, `between` or a
        `Path` with delay, jitter or loss is given.
      mtus: MTUs of single hosts, in bytes.
      seed: seed of losses and jitter.
      kernel: whether the kernel's netem makes strict links. False: the lab's own switch does.
        None: netem does if it exists and can (one switch, one MTU, equal paths without jitter).
      **between: delay, jitter and loss between hosts: the attributes of `Between` (``delay``,
        ``jitter``, ``loss``, ``delays``, ``jitters``, ``losses``).

    Raises:
      ClusterError: a value is impossible (the error names it), tools or rights are missing, or the
        kernel refuses.
    """

    def __init__(
        self,
        hosts: int,
        rate_bits: float | None = None,
        queue_seconds: float = 0.020,
        mtu: int = MTU,
        rates: Mapping[int, float] | None = None,
        paths: Sequence[float | Path] = (),
        *,
        strict: bool | None = None,
        mtus: Mapping[int, int] | None = None,
        seed: int = 1,
        kernel: bool | None = None,
        **between: Any,
    ) -> None:
        spines = [path if isinstance(path, Path) else Path(path) for path in paths]
        with _impossible():
            require_hosts(hosts)
            self._between = Paths(hosts, Between(**between))
            wanted = bool(mtus) or any(
                dataclasses.replace(spine, rate_bits=None) != Path() for spine in spines
            )
            wanted = wanted or self._between.uniform != Path()
            self.strict = wanted if strict is None else bool(strict)
            for host in (*(rates or {}), *(mtus or {})):
                require_host(host, hosts)
            for size in (mtu, *(mtus or {}).values()):
                require_mtu(size, self.strict or wanted)
            for rate in (rate_bits, *(rates or {}).values()):
                require_rate(rate)
            require_queue(queue_seconds)
            require_spines(spines, hosts, self.strict or wanted)
            require_seed(seed)
            if wanted and not self.strict:
                raise ConfigurationError(
                    "delay, jitter, loss and an MTU of single hosts need strict links: leave "
                    "strict out"
                )
            if kernel is not None and not self.strict:
                raise ConfigurationError(
                    f"kernel={kernel} applies to strict links only, but these are not strict: give "
                    "a delay, jitter or loss, or strict=True, or leave kernel out"
                )
        for tool in ("ip", "tc", "nsenter", "setpriv"):
            if shutil.which(tool) is None:
                raise ClusterError(f"{tool} is missing (packages iproute2 and util-linux)")
        if os.geteuid() != 0:
            raise ClusterError("emulated hosts need root: network namespaces and token buckets")
        self.size = hosts
        self.rate_bits = rate_bits
        self.queue_seconds = queue_seconds
        self.paths = tuple(spines)
        self.mtu = mtu
        self._mtus = dict(mtus or {})
        self._seed = seed
        self._forwarder: StrictLinks | None = None
        self._kernel = kernel
        self.netem = False
        self._rates: dict[int, float | None] = dict(rates or {})
        self._jobs: list[Job] = []
        self._closed = False
        remove_stale()
        self.id, self._lock = take_id()
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
        return f"{PREFIX}{self.id}-h{host}"

    def address(self, host: int) -> str:
        """Returns a host's IPv4 address, which is valid on every host of this cluster."""
        return f"10.77.{self._leaf(host)}.{host + 1}"

    def rate(self, host: int) -> float | None:
        """Returns the rate of a host's link in bits per second; None: no limit."""
        return self._rates.get(host, self.rate_bits)

    def rate_between(self, sender: int, receiver: int) -> float | None:
        """Returns the least bits per second of a connection that is alone; None: no limit."""
        rates = [self.rate(sender), self.rate(receiver)]
        if self._leaf(sender) != self._leaf(receiver):
            # The connections of all hosts of a leaf may be hashed to the same spine.
            spines = [path.rate_bits for path in self.paths if path.rate_bits is not None]
            rates += [rate / ((self.size + 1) // 2) for rate in spines]
        return min((rate for rate in rates if rate is not None), default=None)

    def host_id(self, host: int) -> str:
        """Returns the value of ``HERRING_HOST_ID`` on a host."""
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
        """Starts a command on a host. The command is killed when this process ends for any reason.

        Args:
          host: number of the host.
          argv: the command and its arguments.
          env: variables beside those of this process; ``HERRING_HOST_ID`` has a default.
          name: the name of the process in messages; by default its command.
          **options: options of ``subprocess.Popen``.
        """
        environment = {**os.environ, "HERRING_HOST_ID": self.host_id(host), **(env or {})}
        # setpriv comes last, because the kernel clears the death signal when credentials change.
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
        # Reads the link through netlink, because /sys shows the namespace of its mount.
        show = ["-s", "-j", "link", "show", "eth0"]
        link = json.loads(run_tool(["ip", "-n", self.namespace(host), *show]))[0]["stats64"]
        if self._forwarder is not None:
            drops = self._forwarder.port_drops(host)
        else:
            show = ["-s", "-j", "qdisc", "show", "dev", f"p{host}"]
            queues = json.loads(run_tool(["tc", "-n", self._switch(self._leaf(host)), *show]))
            drops = sum(queue.get("drops", 0) for queue in queues)
        tcp = parse_proc_tables(self.run(host, ["cat", "/proc/net/snmp", "/proc/net/netstat"]))
        return HostCounters(
            sent_bytes=link["tx"]["bytes"],
            received_bytes=link["rx"]["bytes"],
            switch_drops=drops,
            retransmits=tcp.get("RetransSegs", 0),
            timeouts=tcp.get("TCPTimeouts", 0),
        )

    def path_bytes(self, path: int) -> int:
        """Returns the bytes that a spine has carried in both directions together."""
        if self._forwarder is not None:
            return self._forwarder.spine_bytes(path)
        total = 0
        for device in ("l0", "l1"):
            show = ["-s", "-j", "link", "show", device]
            link = json.loads(run_tool(["ip", "-n", self._spine(path), *show]))[0]["stats64"]
            total += link["tx"]["bytes"]
        return total

    def total(self, hosts: Iterable[int] | None = None) -> HostCounters:
        """Returns the sum of the counters of some hosts; by default, of all hosts."""
        total = HostCounters(0, 0, 0, 0, 0)
        for host in range(self.size) if hosts is None else hosts:
            total = total + self.counters(host)
        return total

    def set_rate(
        self,
        rate_bits: float | None,
        hosts: Iterable[int] | None = None,
        queue_seconds: float | None = None,
    ) -> None:
        """Changes the rate of links in both directions while jobs run.

        Packets that already wait in a strict link's queue still leave at the old rate.

        Args:
          rate_bits: bits per second; None: no limit.
          hosts: the hosts whose links change; by default all hosts.
          queue_seconds: the most time that a packet may wait in a queue; by default unchanged.

        Raises:
          ClusterError: the rate or the queue is impossible, or a host does not exist.
        """
        chosen = range(self.size) if hosts is None else list(hosts)
        with _impossible():
            require_rate(rate_bits)
            for host in chosen:
                require_host(host, self.size)
            require_queue(self.queue_seconds if queue_seconds is None else queue_seconds)
        if queue_seconds is not None:
            self.queue_seconds = queue_seconds
        if hosts is None:
            self.rate_bits, self._rates = rate_bits, {}
        else:
            self._rates.update((host, rate_bits) for host in chosen)
        if self._forwarder is not None:
            self._forwarder.set_links(dict.fromkeys(chosen, rate_bits), self.queue_seconds)
            return
        for host in chosen:
            switch = self._switch(self._leaf(host))
            for space, device in ((self.namespace(host), "eth0"), (switch, f"p{host}")):
                if rate_bits is None:
                    self._unshape(space, device)
                else:
                    self._shape(space, device, rate_bits)

    def set_path(self, path: int, settings: Path) -> None:
        """Changes a spine's rate, delay, jitter and loss while jobs run (strict links only).

        Raises:
          ClusterError: links are not strict, the spine does not exist, or a value is impossible.
        """
        if self._forwarder is None:
            raise ClusterError("set_path: only strict links can change their delay")
        if not 0 <= path < len(self.paths):
            raise ClusterError(f"there is no path {path}: they are 0 to {len(self.paths) - 1}")
        with _impossible():
            require_spines([settings], self.size, strict=True)
        self.paths = (*self.paths[:path], settings, *self.paths[path + 1 :])
        self._forwarder.set_spine(path, settings, self.queue_seconds)

    def set_delays(self, delay: Amount = 0.0, **others: Any) -> None:
        """Changes delay, jitter and loss between hosts (see `Between`) while jobs run.

        Raises:
          ClusterError: a value is impossible, or links are not strict.
        """
        if not self.strict:
            raise ClusterError("set_delays: only strict links can change their delay")
        with _impossible():
            between = Paths(self.size, Between(delay, **others))
        if self.netem and (between.uniform is None or between.uniform.jitter > 0):
            raise ClusterError("set_delays: netem gives all paths one delay: use kernel=False")
        self._between = between
        if self.netem:
            netem.shape_paths(self._switch(0), self.size, between.uniform)
        else:
            self._forwarder.set_between(between)

    def between(self, sender: int, receiver: int) -> Path:
        """Returns delay, jitter and loss between two hosts, not counting spines."""
        return self._between.between(sender, receiver)

    @property
    def longest_delay(self) -> float:
        """The longest delay between two hosts in seconds, without queues and serialization."""
        spines = [path.delay + path.jitter for path in self.paths]
        return self._between.longest + max(spines, default=0.0)

    def link_report(self, reset: bool = False) -> LinkReport | None:
        """Returns how well strict links kept to their model; None if the kernel makes the links.

        Args:
          reset: whether the next report begins now.

        Raises:
          ClusterError: the switch has ended.
        """
        return None if self._forwarder is None else self._forwarder.report(reset)

    def require_on_time(self) -> LinkReport | None:
        """Returns the link report if strict links kept to their model.

        Raises:
          LateLinksError: the links did not keep to their model since the last report with reset.
        """
        report = self.link_report()
        if report is not None and not report.kept_up:
            raise LateLinksError(report)
        return report

    def close(self) -> None:
        """Ends all processes on the hosts and removes the cluster. More calls have no effect."""
        if self._closed:
            return
        self._closed = True
        # A second Ctrl-C must not interrupt the removal.
        with signals_held():
            # A process that has just been started may not be in its namespace yet.
            for job in self._jobs:
                if job.process.poll() is None:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(job.process.pid, signal.SIGKILL)
            if self._forwarder is not None:
                self._forwarder.close()
            remove(self.id)
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
        return f"{PREFIX}{self.id}-sw{leaf}"

    def _spine(self, path: int) -> str:
        return f"{PREFIX}{self.id}-sp{path}"

    @property
    def _lock_path(self) -> pathlib.Path:
        return LOCK_DIRECTORY / self.id

    def _build(self, mtu: int) -> None:
        leaves = (0, 1) if self.paths and not self.strict else (0,)
        spaces = [self._switch(leaf) for leaf in leaves]
        if not self.strict:
            spaces += [self._spine(path) for path in range(len(self.paths))]
        spaces += [self.namespace(host) for host in range(self.size)]
        run_batch(["ip", "-batch", "-"], [f"netns add {name}" for name in spaces])
        if self.strict:
            self.netem = self._may_use_netem()
            if not self.netem:
                self._forwarder = self._build_strict()
                return
        for leaf in leaves:
            hosts = [host for host in range(self.size) if self._leaf(host) == leaf]
            self._build_switch(leaf, hosts, mtu)
        for host in range(self.size):
            commands = [
                "link set lo up",
                f"addr add {self.address(host)}/24 dev eth0",
                "link set eth0 addrgenmode none up",
            ]
            if self.netem:  # netem must see packets, not larger segments
                commands.append("link set eth0 gso_max_segs 1")
            if self.paths:
                commands.append(f"route add default via 10.77.{self._leaf(host)}.254")
            run_batch(["ip", "-n", self.namespace(host), "-batch", "-"], commands)
            self._shape(self.namespace(host), "eth0", self.rate(host))
            self._shape(self._switch(self._leaf(host)), f"p{host}", self.rate(host))
        if self.netem:
            netem.build_paths(self._switch(0), self.size, self._between.uniform)
        if self.paths:
            self._build_spines(mtu)

    def _may_use_netem(self) -> bool:
        path = self._between.uniform
        alike = path is not None and path.jitter == 0 and not self.paths and not self._mtus
        if self._kernel and not alike:
            raise ClusterError(
                "netem gives all paths one delay and loss, no jitter, one switch and one MTU: "
                "leave kernel out"
            )
        found = self._kernel is not False and alike and netem.available(self._switch(0))
        if self._kernel and not found:
            raise ClusterError("this kernel has no netem or no ifb: leave kernel out")
        return found

    def _build_strict(self) -> StrictLinks:
        hosts = range(self.size)
        return StrictLinks(
            [self.namespace(host) for host in hosts],
            self._switch(0),
            [self.address(host) for host in hosts],
            [self._mtus.get(host, self.mtu) for host in hosts],
            [self.rate(host) for host in hosts],
            self.queue_seconds,
            self.paths,
            self._between,
            self._seed,
        )

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
        run_batch(["ip", "-n", self._switch(leaf), "-batch", "-"], commands)

    def _build_spines(self, mtu: int) -> None:
        for path, settings in enumerate(self.paths):
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
                run_batch(["ip", "-n", self._switch(leaf), "-batch", "-"], up)
                down = [
                    f"addr add {far}/30 dev l{leaf}",
                    f"link set l{leaf} addrgenmode none up",
                    f"route add 10.77.{leaf}.0/24 via {near}",
                ]
                run_batch(["ip", "-n", spine, "-batch", "-"], down)
                self._shape(self._switch(leaf), f"s{path}", settings.rate_bits)
                self._shape(spine, f"l{leaf}", settings.rate_bits)
        for leaf in (0, 1):
            self._route_here(self._switch(leaf))
            hops = " ".join(
                f"nexthop via 10.78.{2 * path + leaf}.2 dev s{path}"
                for path in range(len(self.paths))
            )
            route = ["route", "add", f"10.77.{1 - leaf}.0/24", *hops.split()]
            run_tool(["ip", "-n", self._switch(leaf), *route])

    def _route_here(self, namespace: str) -> None:
        settings = {"ip_forward": 1, "fib_multipath_hash_policy": 1, "conf/all/rp_filter": 0}
        script = "; ".join(f"echo {v} > /proc/sys/net/ipv4/{k}" for k, v in settings.items())
        run_tool(["nsenter", f"--net=/run/netns/{namespace}", "sh", "-c", script])

    def _shape(self, namespace: str, device: str, rate: float | None) -> None:
        if rate is None:
            return
        arguments = f"tbf rate {int(rate)}bit burst {BURST} latency {self.queue_seconds * 1e3:g}ms"
        words = arguments.split()
        if self.netem:
            words = netem.rate_arguments(rate, self.queue_seconds, self.mtu)
        run_tool(["tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", *words])

    def _unshape(self, namespace: str, device: str) -> None:
        qdisc = ["tc", "-n", namespace, "qdisc"]
        if any(kind in run_tool([*qdisc, "show", "dev", device]) for kind in ("tbf", "netem")):
            run_tool([*qdisc, "del", "dev", device, "root"])


@contextlib.contextmanager
def _impossible() -> Iterator[None]:
    """Turns the error of a wrong value into a `ClusterError`."""
    try:
        yield
    except ConfigurationError as error:
        raise ClusterError(str(error)) from None
