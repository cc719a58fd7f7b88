"""Strict links match the closed form of delay, loss and serialization, and reject wrong values."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from emulated import namespaces, needs_hosts
from herring_lab.emulate import Cluster, ClusterError, LateLinksError, Path, cluster, netem
from herring_lab.emulate.check import check_links
from herring_lab.emulate.paths import Between, Paths
from herring_lab.emulate.strict import LinkReport
from jobs import program

HERRING = [sys.executable, "-m", "herring.command.cli"]
PROGRAMS = pathlib.Path(__file__).parent / "programs"


needs_strict = needs_hosts(strict=True)

_HEADERS = 14 + 20 + 8  # Ethernet, IP, UDP


def _python(name: str, *arguments: str) -> list[str]:
    return [sys.executable, "-S", *program(name, *arguments, folder=PROGRAMS)]


def _start(hosts: Cluster, host: int, name: str, *arguments: str) -> subprocess.Popen[str]:
    argv = _python(name, *arguments)
    job = hosts.popen(host, argv, stdout=subprocess.PIPE, text=True)
    assert job.process.stdout.readline() == "ready\n"
    return job.process


def _round_trip(hosts: Cluster, size: int, one: int = 0, other: int = 1, count: int = 20) -> float:
    argv = _python("udp_ping", hosts.address(other), str(size), str(count))
    return float(hosts.run(one, argv))


def _round_trips(hosts: Cluster, size: int, enough: float) -> list[float]:
    """Measures again and again, until one of the round trips takes no longer than `enough`."""
    found: list[float] = []
    while len(found) < 20 and (not found or min(found) >= enough):
        found.append(_round_trip(hosts, size))
    return found


def _train(hosts: Cluster, size: int, count: int) -> tuple[int, float]:
    sink = _start(hosts, 1, "udp_sink", str(count))
    hosts.run(0, _python("udp_train", hosts.address(1), str(size), str(count)))
    got, seconds = sink.stdout.readline().split()
    return int(got), float(seconds)


# Other work on this machine may delay links, but nothing makes them faster, so the minimum counts.
def _seconds_of_train(hosts: Cluster, size: int, count: int) -> float:
    trains = [_train(hosts, size, count) for _ in range(3)]
    assert all(got == count for got, _ in trains)
    return min(seconds for _, seconds in trains)


@pytest.mark.measures
@needs_strict
@pytest.mark.parametrize(("delay", "size"), [(0.0, 8000), (0.005, 8000), (0.005, 10)])
def test_a_packet_takes_both_links_and_the_delay_each_way(delay: float, size: int) -> None:
    with Cluster(2, 50e6, delay=delay, strict=True) as hosts:
        _start(hosts, 1, "udp_echo")
        expected = 2 * (delay + 2 * 8 * (size + _HEADERS) / 50e6)
        # Packets never arrive before the model's time. Other programs may make them later, but
        # hardly all of them.
        fastest = min(_round_trips(hosts, size, expected + 0.003))
    assert expected <= fastest < expected + 0.003


@pytest.mark.measures
@needs_strict
def test_a_train_keeps_to_the_rate_and_overruns_the_queue() -> None:
    size, count, rate = 8000, 150, 100e6
    packet = 8 * (size + _HEADERS) / rate
    with Cluster(2, rate, 0.5, strict=True) as hosts:
        seconds = _seconds_of_train(hosts, size, count)
        assert seconds == pytest.approx((count - 1) * packet, rel=0.1)
        # The queue is 20 packet times deep. It drops all packets but these and the one under way.
        hosts.set_rate(rate, queue_seconds=20 * packet)
        got, _ = _train(hosts, size, count)
        assert 20 <= got < 60
        report = hosts.link_report()
        assert report.lost == 0


@pytest.mark.measures
@needs_strict
def test_a_rate_changes_in_mid_run() -> None:
    with Cluster(2, 100e6, 0.5, strict=True) as hosts:
        times = []
        for rate in (100e6, 25e6, 100e6):
            hosts.set_rate(rate)
            times.append(_seconds_of_train(hosts, 8000, 60))
            assert hosts.rate(0) == rate
    assert times[1] / times[0] == pytest.approx(4, rel=0.2)
    assert times[2] / times[0] == pytest.approx(1, rel=0.2)


@needs_strict
def test_a_token_bucket_changes_its_rate_too() -> None:
    with Cluster(2, 100e6) as hosts:
        for rate, text in ((25e6, "25Mbit"), (None, ""), (10e6, "10Mbit")):
            hosts.set_rate(rate, hosts=[1])
            show = ["tc", "-n", hosts.namespace(1), "qdisc", "show", "dev", "eth0"]
            shown = subprocess.run(show, capture_output=True, text=True, check=True).stdout
            assert ("tbf" in shown) == (rate is not None)
            assert text in shown
            assert hosts.rate(1) == rate
            assert hosts.rate(0) == 100e6
        with pytest.raises(ClusterError, match="strict"):
            hosts.set_delays("1ms")


@pytest.mark.measures
@needs_strict
def test_packets_are_lost_as_often_as_asked() -> None:
    with Cluster(2, loss="10%", strict=True) as hosts:
        got, _ = _train(hosts, 100, 2000)
        lost = hosts.link_report().lost
    assert got <= 2000 - lost + 20  # ARP packets are not lost, and do not belong to the train
    assert 2000 * 0.05 < lost < 2000 * 0.15


@pytest.mark.measures
@needs_strict
def test_a_far_host_and_two_sites() -> None:
    with Cluster(3, 1e9, delay="200us", delays={2: "8ms"}) as hosts:
        for host in (1, 2):
            _start(hosts, host, "udp_echo")
        assert 0.0004 < _round_trip(hosts, 100, 0, 1) < 0.004
        assert 0.016 < _round_trip(hosts, 100, 0, 2) < 0.020
        assert 0.016 < _round_trip(hosts, 100, 1, 2) < 0.020
        hosts.set_delays("3ms")
        assert 0.006 < _round_trip(hosts, 100, 0, 2) < 0.010
    with Cluster(3, 1e9, paths=[Path(10e6, delay=0.005)]) as hosts:
        for host in (1, 2):
            _start(hosts, host, "udp_echo")
        thin = 2 * (0.005 + 8 * (4000 + _HEADERS) / 10e6)
        assert thin < _round_trip(hosts, 4000, 0, 1) < thin + 0.004
        assert _round_trip(hosts, 4000, 0, 2) < 0.005
        assert hosts.path_bytes(0) >= 2 * 20 * 4000
        hosts.set_path(0, Path(10e6, delay=0.0))
        assert _round_trip(hosts, 4000, 0, 1) < thin - 0.006


@needs_strict
def test_a_host_has_its_own_mtu() -> None:
    with Cluster(2, strict=True, mtus={1: 1500}) as hosts:
        for host, size in ((0, 9000), (1, 1500)):
            show = ["ip", "-n", hosts.namespace(host), "link", "show", "eth0"]
            shown = subprocess.run(show, capture_output=True, text=True, check=True).stdout
            assert f"mtu {size} " in shown


@pytest.mark.measures
@needs_strict
def test_links_that_stood_still_void_what_was_measured() -> None:
    with Cluster(2, delay="50ms") as hosts:
        _start(hosts, 1, "udp_echo")
        _round_trip(hosts, 100, count=2)
        assert hosts.require_on_time().kept_up
        sender = hosts.popen(
            0,
            _python("udp_ping", hosts.address(1), "100", "40"),
            stdout=subprocess.DEVNULL,
        )
        before = hosts.link_report(reset=True).packets
        while hosts.link_report().packets <= before:
            pass
        os.kill(hosts._forwarder.pid, signal.SIGSTOP)
        time.sleep(0.4)
        os.kill(hosts._forwarder.pid, signal.SIGCONT)
        sender.process.wait(600)
        with pytest.raises(LateLinksError, match="void") as caught:
            hosts.require_on_time()
        assert caught.value.report.worst_lateness > 0.1


@needs_strict
@pytest.mark.parametrize(
    "line", ["link 99 1 1", "link 0", "pair 0 2 0 0 0", "spine 0 0 0 0", "tap 0 x", "fly", "path 1"]
)
def test_the_switch_names_a_line_that_it_cannot_do(line: str) -> None:
    with Cluster(2, strict=True) as hosts:
        with pytest.raises(ClusterError, match=f"'{line}'"):
            hosts._forwarder.tell([line])
        with pytest.raises(ClusterError, match="has ended"):
            hosts.link_report()


def test_netem_is_told_rate_queue_and_path() -> None:
    # 20 ms at 100 Mbit/s are 250 kB: 27.7 packets of the MTU wait, and one is being sent.
    told = netem.rate_arguments(100e6, 0.020, 9000)
    assert told == ["netem", "rate", "100000000bit", "limit", "29"]
    assert netem.rate_arguments(1e6, 0.0, 9000)[-1] == "1"
    assert netem.path_arguments(Path()) == ["netem", "delay", "0.000us", "limit", "1000000"]
    told = netem.path_arguments(Path(None, 0.0005, loss=0.001))
    assert told[:5] == ["netem", "delay", "500.000us", "loss", "0.100000%"]


@needs_strict
def test_what_netem_cannot_do_the_switch_does(monkeypatch) -> None:
    monkeypatch.setattr(netem, "available", lambda namespace: True)
    for options in ({"jitter": "1ms"}, {"delays": {0: "1ms"}}, {"mtus": {0: 1500}}):
        with Cluster(2, **options) as hosts:
            assert not hosts.netem
        with pytest.raises(ClusterError, match="leave kernel out"):
            Cluster(2, kernel=True, **options)
    monkeypatch.setattr(netem, "available", lambda namespace: False)
    with pytest.raises(ClusterError, match="no netem"):
        Cluster(2, delay="1ms", kernel=True)


@pytest.mark.measures
@needs_strict
def test_hosts_reach_each_other_through_the_kernels_devices(monkeypatch) -> None:
    """Tests everything around netem; without netem in the kernel, other queues replace it."""
    with Cluster(1) as hosts:
        real = netem.available(hosts.namespace(0))
    if not real:
        monkeypatch.setattr(netem, "available", lambda namespace: True)
        monkeypatch.setattr(netem, "path_arguments", lambda path: ["pfifo", "limit", "1000"])
        bucket = ["tbf", "rate", "100mbit", "burst", "64kb", "latency", "20ms"]
        monkeypatch.setattr(netem, "rate_arguments", lambda *unused: bucket)
    with Cluster(2, 100e6, delay="1ms") as hosts:
        assert hosts.netem
        assert hosts.link_report() is None
        _start(hosts, 1, "udp_echo")
        took = _round_trip(hosts, 8000)
        assert took > 0.002 or not real
        show = ["tc", "-n", hosts._switch(0), "-s", "qdisc", "show", "dev", "ifb0"]
        shown = subprocess.run(show, capture_output=True, text=True, check=True).stdout
        assert int(shown.split("Sent ")[1].split()[0]) > 20 * 8000, "nothing went through the path"
        hosts.set_delays("2ms")
        hosts.set_rate(50e6)
        assert _round_trip(hosts, 8000) > 0
        with pytest.raises(ClusterError, match="kernel=False"):
            hosts.set_delays("1ms", delays={0: "2ms"})


def test_a_report_says_what_it_found() -> None:
    good = LinkReport(2.0, 0.5, 1000, 50, 1e-4, 2e-5, 9e-2, 1e-3, 3, 0)
    assert good.kept_up
    assert "0.25 of a processor" in good.text()
    for field, value in (
        ("late", 51),
        ("mean_lateness", 6e-5),
        ("worst_lateness", 0.11),
        ("overrun", 1),
    ):
        values = {**good.__dict__, field: value}
        bad = LinkReport(**values)
        assert not bad.kept_up
        assert "1000 packets" in str(LateLinksError(bad))


def test_of_pairs_and_hosts_the_nearest_counts() -> None:
    delays = {2: "5ms", 3: 0.002, (3, 2): "9ms"}
    paths = Paths(4, Between("1ms", loss="1%", delays=delays, losses={0: 0}))
    assert paths.between(0, 1).delay == pytest.approx(0.001)
    assert paths.between(0, 2) == paths.between(2, 0)
    assert paths.between(2, 0).delay == pytest.approx(0.005)
    assert paths.between(2, 3).delay == pytest.approx(0.009)
    assert paths.between(3, 1).delay == pytest.approx(0.002)
    assert paths.between(0, 1).loss == 0
    assert paths.between(2, 1).loss == pytest.approx(0.01)
    lines = paths.lines()
    assert lines[0] == "path 1000000 0 0.01"
    assert "pair 2 3 9000000 0 0.01" in lines
    assert "pair 0 1 1000000 0 0.0" in lines
    assert Paths(3, Between(0.5)).lines() == ["path 500000000 0 0.0"]
    assert paths.longest == pytest.approx(0.009)
    assert paths.shortest == pytest.approx(0.001)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"delay": -1e-3}, "delay -0.001.*0 to 10 seconds"),
        ({"delay": "11s"}, "11s"),
        ({"delay": float("nan")}, "nan"),
        ({"jitter": "soon"}, "'soon' is not a time"),
        ({"loss": 1.5}, "1.5.*0 % to 100 %"),
        ({"loss": "0.1"}, "0.1%"),
        ({"loss": "101%"}, "101%"),
        ({"delays": {9: "1ms"}}, "host 9.*0 to 1"),
        ({"losses": {(0, 5): 0.1}}, "host 5.*0 to 1"),
        ({"jitters": {(1, 1): 0.1}}, "host 1 and itself"),
        ({"mtus": {4: 1500}}, "no host 4"),
        ({"mtu": 575}, "576 to 65535 bytes, not 575"),
        ({"mtu": 65522, "strict": True}, "576 to 65521 bytes, not 65522"),
        ({"mtus": {1: 70000}}, "576 to 65521"),
        ({"strict": False, "delay": "1ms"}, "need strict links"),
        ({"rate_bits": -1.0}, "-1.0 bit/s"),
        ({"queue_seconds": 11}, "not 11"),
        ({"paths": [Path(1e6, delay=-1.0)]}, "delay of a path"),
        ({"paths": [Path(None)]}, "needs a rate"),
        ({"paths": [1e6] * 65}, "1 to 64 spines, not 65"),
        ({"paths": ["50mbit"]}, "10 Tbit/s, not '50mbit' bit/s"),
        ({"hosts": 1, "paths": [1e6]}, "a single host has none"),
        ({"hosts": 0}, "1 to 250 hosts, not 0"),
        ({"hosts": 251}, "1 to 250 hosts, not 251"),
        ({"hosts": 2.5}, "1 to 250 hosts, not 2.5"),
        ({"rate_bits": float("nan")}, "not nan bit/s"),
        ({"rate_bits": 1e14}, "10 Tbit/s, not 1"),
        ({"rates": {2: 1e6}}, "no host 2: they are 0 to 1"),
        ({"rates": {"0": 1e6}}, "no host '0'"),
        ({"queue_seconds": "20ms"}, "not '20ms'"),
        ({"mtu": 1500.5}, "not 1500.5"),
        ({"delay": None}, "delay None"),
        ({"delays": {(0, 1, 2): 0.1}}, "one host or two"),
        ({"seed": -1}, "a seed is 0 to .*, not -1"),
        ({"kernel": True}, "kernel=True applies to strict links only, but these are not"),
        ({"strict": False, "kernel": False}, "kernel=False applies"),
    ],
)
def test_the_impossible_is_named_before_anything_is_made(
    options: dict, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "take_id", lambda: pytest.fail("an id is taken"))
    with pytest.raises(ClusterError, match=text):
        Cluster(**{"hosts": 2, **options})


@needs_strict
def test_the_impossible_changes_nothing() -> None:
    with Cluster(2, 1e8, delay="1ms", paths=[1e7]) as hosts:
        for change, text in (
            (lambda: hosts.set_rate(10.0), "not 10.0 bit/s"),
            (lambda: hosts.set_rate(1e7, hosts=[2]), "no host 2"),
            (lambda: hosts.set_rate(1e7, queue_seconds=-1), "not -1"),
            (lambda: hosts.set_path(1, Path(1e6)), "no path 1: they are 0 to 0"),
            (lambda: hosts.set_path(0, Path(1e6, loss=2.0)), "loss of a path 2.0"),
            (lambda: hosts.set_path(0, Path(1.0)), "not 1.0 bit/s"),
            (lambda: hosts.set_delays("1 minute"), "1 minute"),
            (lambda: hosts.set_delays(losses={2: 0.1}), "no host 2"),
        ):
            with pytest.raises(ClusterError, match=text):
                change()
        assert (hosts.rate(0), hosts.queue_seconds) == (1e8, 0.020)
        assert hosts.paths == (Path(1e7),)
        assert hosts.between(0, 1).delay == pytest.approx(0.001)


@pytest.mark.measures
@needs_strict
def test_links_of_a_long_path_are_measured_too() -> None:
    with Cluster(2, 20e6, delay="40ms", paths=[Path(10e6, delay=0.04)]) as hosts:
        links = check_links(hosts, 1.0)
    assert links.round_trip_seconds >= 0.16
    assert links.slow() == []


@needs_strict
def test_a_job_runs_over_long_lossy_paths() -> None:
    script = (
        "import herring, numpy as np; herring.init(); a = np.ones(100_000, np.float32);"
        "herring.allreduce(a, 'sum'); print(a[0], herring.num_nodes(), flush=True)"
    )
    options = ["--rate", "50mbit", "--delay", "1ms", "--delay", "0-1=2ms", "--jitter", "100us"]
    options += ["--loss", "0.1%", "--mtu", "1=1500", "--paths", "2x40mbit@1ms+0.1ms/0.1%"]
    argv = [*HERRING, "lab", "run", "--workers", "2", "--servers", "2", *options, "--no-check"]
    argv += ["--timeout", "600", "--", "python", "-c", script]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=700, check=False)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0] 2.0 2", "[1] 2.0 2"]
    assert "of a processor" in done.stderr


@needs_strict
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_leaves_nothing(number: int) -> None:
    code = (
        "import signal, sys; from herring_lab.emulate import Cluster\n"
        "signal.signal(15, lambda *_: sys.exit(143))\n"
        "with Cluster(2, delay='1ms') as hosts:\n"
        "    print(hosts.id, hosts._forwarder.pid, flush=True); hosts.run(0, ['sleep', '600'])"
    )
    job = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        identity, switch = job.stdout.readline().split()
        job.send_signal(number)
        assert job.wait(600) != 0
        # The switch died with its maker: it is gone, or its new parent has not collected it yet.
        end = time.monotonic() + 600
        while _runs(int(switch)):
            assert time.monotonic() < end, "the switch lives on"
        if number == signal.SIGKILL:
            with Cluster(1, strict=True):  # a new cluster removes the namespaces
                pass
        assert not [name for name in namespaces() if identity in name]
    finally:
        job.kill()
        job.communicate()


def _runs(pid: int) -> bool:
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rsplit(")", 1)[1].split()[0] not in "ZX"
