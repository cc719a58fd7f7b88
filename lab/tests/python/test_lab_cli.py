"""`herring lab` runs commands, measures its links, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import pathlib
import pty
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import pytest

import warm
from emulated import namespaces, namespaces_of, needs_hosts
from herring.base.units import parse_rate, parse_seconds, parse_share, show_rate
from herring.errors import ConfigurationError
from herring.rendezvous.detect import detect
from herring_lab.emulate import folders
from herring_lab.emulate.cluster import Cluster, ClusterError
from herring_lab.emulate.environment import (
    Meeting,
    server_environment,
    worker_environment,
    write_secret,
)
from herring_lab.emulate.runner import substitute

HERRING = [sys.executable, "-m", "herring.command.cli"]
needs_root = needs_hosts(rate_bits=1e8)


def lab(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    return warm.run(
        [*HERRING, "lab", *arguments], capture_output=True, text=True, timeout=600, **options
    )


@pytest.mark.parametrize(
    ("text", "bits"),
    [
        ("200mbit", 2e8),
        ("1.5gbit", 1.5e9),
        ("9600 BIT", 9600),
        (".5kbit", 500),
        ("10Gbps", 1e10),
        ("10G", 1e10),
        ("2.5 Gbit/s", 2.5e9),
        ("10Gb/s", 1e10),
        ("1Tbit", 1e12),
    ],
)
def test_rates(text: str, bits: float) -> None:
    assert parse_rate(text) == bits


@pytest.mark.parametrize(
    "text", ["", "200", "0mbit", "-1mbit", "mbit", "1mb", "1MB", "1GB/s", "1e3mbit", "nanmbit"]
)
def test_wrong_rates_are_named(text: str) -> None:
    with pytest.raises(ConfigurationError, match="mbit"):
        parse_rate(text)


def test_times_and_rates_for_people() -> None:
    assert parse_seconds("20ms") == pytest.approx(0.02)
    assert parse_seconds("500us") == pytest.approx(0.0005)
    assert parse_seconds("5m") == 300
    assert parse_seconds("30") == 30
    assert parse_share("0.5%") == pytest.approx(0.005)
    assert show_rate(2e8) == "200 Mbit/s"
    assert show_rate(1.25e9) == "1.25 Gbit/s"
    with pytest.raises(ConfigurationError, match="20 minutes"):
        parse_seconds("20 minutes")


def test_only_known_names_are_replaced() -> None:
    assert substitute('{rank}/{size} {"a": {rank}} {other}', {"rank": "3", "size": "4"}) == (
        '3/4 {"a": 3} {other}'
    )


def test_workers_are_told_their_place_and_all_are_told_the_settings(tmp_path) -> None:
    secret = write_secret(tmp_path)
    assert pathlib.Path(secret).stat().st_mode & 0o777 == 0o600
    assert len(bytes.fromhex(pathlib.Path(secret).read_text())) == 32
    meeting = Meeting("10.0.0.1", 29400, secret, 6, 2, settings={"HERRING_FLOWS": "4"})
    server = server_environment(meeting)
    worker = worker_environment(meeting, 5, 1, 2)
    assert server["HERRING_RENDEZVOUS"] == "10.0.0.1:29400"
    assert server["HERRING_FLOWS"] == "4"
    assert "HERRING_RANK" not in server
    assert {**worker, **server} == worker
    found = detect(worker)
    assert (found.rank, found.size, found.servers) == (5, 6, 2)
    assert (found.local_rank, found.local_size) == (1, 2)
    assert (worker["RANK"], worker["WORLD_SIZE"], worker["MASTER_ADDR"]) == ("5", "6", "10.0.0.1")
    assert worker["MASTER_PORT"] not in ("29400", "29401")


@pytest.mark.parametrize(
    ("missing", "text"), [("root", "need root"), ("tc", "tc is missing .packages iproute2")]
)
def test_what_is_missing_is_named(missing: str, text: str, monkeypatch) -> None:
    which = shutil.which
    monkeypatch.setattr(os, "geteuid", lambda: 1000 if missing == "root" else 0)
    monkeypatch.setattr(
        shutil, "which", lambda name: None if name == missing else (which(name) or name)
    )
    with pytest.raises(ClusterError, match=text):
        Cluster(2)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--rate", "200"], "--rate: '200' is not a rate"),
        (["--queue", "long"], "--queue: 'long' is not a time"),
        (["--slow", "1=5"], "--slow 1=5: '5' is not a rate"),
        (["--paths", "2x5"], "--paths: '5' is not a rate"),
    ],
)
def test_a_wrong_value_is_named_with_its_option(arguments: list[str], text: str) -> None:
    done = lab("check", *arguments)
    assert done.returncode != 0
    assert text in done.stderr


@needs_root
@pytest.mark.parametrize(
    ("dropped", "names"),
    [
        ("-net_admin,-sys_admin", "lacks CAP_NET_ADMIN and CAP_SYS_ADMIN: start"),
        ("-sys_admin", "lacks CAP_SYS_ADMIN: start"),
    ],
)
def test_without_capabilities_the_lab_says_what_to_do(dropped: str, names: str) -> None:
    without = ["setpriv", f"--bounding-set={dropped}", f"--inh-caps={dropped}"]
    done = warm.run(
        [*without, *HERRING, "lab", "run", "--", "true"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode != 0
    assert names in done.stderr
    assert "docker run --cap-add NET_ADMIN --cap-add SYS_ADMIN" in done.stderr
    assert "Operation not permitted" in done.stderr.partition("--privileged")[2], done.stderr
    assert "Traceback" not in done.stderr


@needs_root
def test_commands_get_their_place_and_lines_their_rank() -> None:
    script = "echo {rank} of {size} on {host}/{local_rank} at {address} $RANK $HERRING_LOCAL_SIZE"
    done = lab("run", "--workers", "3", "--per-host", "2", "--no-check", "--", "sh", "-c", script)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        "[0] 0 of 3 on 0/0 at 10.77.0.1 0 2",
        "[1] 1 of 3 on 0/1 at 10.77.0.1 1 2",
        "[2] 2 of 3 on 1/0 at 10.77.0.2 2 1",
    ]


@needs_root
def test_a_job_with_servers_runs_over_shaped_links() -> None:
    script = (
        "import herring, numpy as np; herring.init(); a = np.ones(250_000, np.float32);"
        "herring.allreduce(a, 'sum'); print(a[0], herring.num_nodes(), flush=True)"
    )
    done = lab(
        *["run", "--workers", "2", "--servers", "2", "--rate", "40mbit", "--timeout", "600"],
        *["--", "python", "-c", script],
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0] 2.0 2", "[1] 2.0 2"]
    assert "4 hosts" in done.stderr
    assert "round trip" in done.stderr


@needs_root
def test_a_failure_is_named_and_ends_the_others() -> None:
    script = "[ {rank} = 1 ] && exit 7; sleep 600"
    done = lab("run", "--workers", "3", "--no-check", "--", "sh", "-c", script)
    assert done.returncode == 7
    assert "rank 1 (host 1) ended with status 7" in done.stderr


@needs_root
def test_a_time_limit_names_who_still_runs() -> None:
    options = ["--no-check", "--timeout", "2"]
    done = lab("run", "--workers", "2", *options, "--", "sleep", "600")
    assert done.returncode == 124
    assert "rank 0, rank 1" in done.stderr


@needs_root
def test_links_that_do_not_deliver_give_no_figures() -> None:
    done = lab("run", "--workers", "2", "--rate", "900gbit", "--", "echo", "ran")
    assert done.returncode == 3
    assert "cannot carry such a lab" in done.stderr
    assert "ran" not in done.stdout


@needs_root
def test_a_slow_card_is_slow() -> None:
    done = lab("check", "--workers", "3", "--rate", "80mbit", "--slow", "1=20mbit")
    assert done.returncode == 0, done.stderr
    rates = re.search(r"at once: ([\d.]+) Mbit/s to ([\d.]+) Mbit/s each", done.stderr)
    assert rates is not None, done.stderr
    assert float(rates[1]) < 21
    assert float(rates[2]) > 60


@needs_root
def test_connections_spread_over_the_paths_of_a_spine() -> None:
    listen = (
        "import socket, threading\n"
        "s = socket.create_server(('', 5000)); print('ready', flush=True); total = 0\n"
        "def read(c):\n"
        "    while c.recv(65536): pass\n"
        "ts = []\n"
        "for _ in range(32):\n"
        "    t = threading.Thread(target=read, args=(s.accept()[0],)); t.start(); ts.append(t)\n"
        "for t in ts: t.join()\n"
    )
    send = (
        "import socket\n"
        "cs = [socket.create_connection(('{0}', 5000)) for _ in range(32)]\n"
        "for c in cs: c.sendall(bytes(20000))\n"
    )
    with Cluster(2, 1e9, paths=[1e8] * 4) as cluster:
        pipe = {"stdout": subprocess.PIPE, "text": True}
        job = cluster.popen(1, [sys.executable, "-c", listen], **pipe)
        assert job.process.stdout.readline() == "ready\n"
        cluster.run(0, [sys.executable, "-c", send.replace("{0}", cluster.address(1))])
        assert job.process.wait(600) == 0
        used = [path for path in range(4) if cluster.path_bytes(path) > 20000]
    # With 32 connections over 4 paths, a path has none with probability 4 * 0.75 ** 32 (1 in 2500).
    assert len(used) >= 3


@needs_root
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_nothing(number: int, tmp_path: pathlib.Path) -> None:
    script = "echo running; exec sleep 600"
    job = warm.Popen(
        [*HERRING, "lab", "run", "--no-check", "--", "sh", "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        text=True,
    )
    assert "running" in job.stdout.readline()
    assert any(tmp_path.iterdir())
    made = namespaces_of(job.pid)
    assert made
    job.send_signal(number)
    assert job.wait(600) == 128 + number
    assert not made & namespaces()
    assert not any(tmp_path.iterdir())


@needs_root
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_nothing_of_a_study(number: int, tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    study = warm.Popen(
        [*HERRING, "study", "allreduce", "--peers", "openmpi:ring", "--out", str(tmp_path / "out")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(folder)},
    )
    end = time.monotonic() + 60
    while not (made := namespaces_of(study.pid)) or not any(folder.iterdir()):
        assert study.poll() is None and time.monotonic() < end
        time.sleep(0.05)
    study.send_signal(number)
    assert study.wait(600) == 128 + number
    assert not made & namespaces()
    assert not any(folder.iterdir())


def test_folders_of_killed_processes_are_removed_and_others_stay(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    program = """
import sys, time
from herring_lab.emulate import folders
with folders.temporary("study") as path:
    print(path, flush=True)
    time.sleep(600)
"""
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    killed, going = (
        warm.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=env, text=True)
        for _ in range(2)
    )
    try:
        left, used = (job.stdout.readline().rstrip() for job in (killed, going))
        (tmp_path / "herring-other").mkdir()
        killed.kill()
        killed.wait()
        assert folders.remove_left() == [left]
        assert {each.name for each in tmp_path.iterdir()} == {
            "herring-other",
            pathlib.Path(used).name,
        }
    finally:
        going.kill()
        going.wait()


@needs_root
def test_what_a_killed_lab_left_is_removed_while_another_goes_on() -> None:
    script = ["sh", "-c", "echo running; exec sleep 600"]
    argv = [*HERRING, "lab", "run", "--no-check", "--", *script]
    killed, going = (
        warm.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for _ in range(2)
    )
    try:
        for job in (killed, going):
            assert "running" in job.stdout.readline()
        lost, kept = namespaces_of(killed.pid), namespaces_of(going.pid)
        assert lost and kept
        killed.kill()
        killed.wait()
        assert lab("clean").returncode == 0
        assert not lost & namespaces()
        assert kept <= namespaces()
        assert going.poll() is None
    finally:
        going.terminate()
        going.wait(600)
    assert not kept & namespaces()


@needs_root
@pytest.mark.parametrize("merged", [True, False])
def test_a_terminal_shows_the_time_and_keeps_the_commands_lines(merged: bool) -> None:
    script = "echo before; sleep 1.3; echo after"
    own, theirs = pty.openpty()
    options = ["--workers", "1", "--no-check", "--timeout", "50"]
    job = warm.Popen(
        [*HERRING, "lab", "run", *options, "--", "sh", "-c", script],
        stdout=theirs if merged else subprocess.PIPE,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "NO_COLOR": "1"},
    )
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # on Linux, the end of the terminal raises
        while data := os.read(own, 1 << 16):
            shown += data
    os.close(own)
    output, _ = job.communicate(timeout=600)
    assert job.returncode == 0, shown
    text = shown.decode().replace("\r\n", "\n")
    assert "\r\x1b[2Kherring lab: 1 s, timeout in 49 s" in text
    assert text.endswith(("\x1b[2K", "after\n")), "the line stays behind"
    lines = re.sub(r"\r\x1b\[2K(herring lab: [^\r\n]*)?", "", text)
    both = "[0] before\n[0] after\n"
    assert (lines, output) == ((both, None) if merged else ("", both.encode()))
