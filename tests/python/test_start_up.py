"""Tests what processes report while they wait for each other, and where they listen."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from herring.errors import ConfigurationError
from herring.rendezvous import slurm
from herring.rendezvous.endpoint import bind, bind_any
from herring.rendezvous.publication import Wait
from jobs import expect_success, program, run_job
from ports import block, held, port_of

SECRET = "ab" * 32


@pytest.fixture
def free_port() -> Iterator[int]:
    with held() as holder:
        yield port_of(holder)


def clean() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("HERRING_")}


def run(command: list[str], **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *command],
        env={**clean(), "HERRING_SECRET": SECRET, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )
    assert done.returncode != 0
    return done.stdout


INIT = ["-c", "import herring; herring.init()"]
SERVER = ["-m", "herring.command.cli", "server"]


def says(output: str) -> list[str]:
    """Returns the warnings about waiting, line by line, without the error at the end."""
    return re.findall(r"warning: (.*has waited .*)", output)


def test_by_default_a_missing_rank_is_named_long_before_the_error(free_port: int) -> None:
    output = run(
        INIT,
        HERRING_RANK="0",
        HERRING_SIZE="2",
        HERRING_RENDEZVOUS=f"127.0.0.1:{free_port}",
        HERRING_CONNECT_TIMEOUT="14",
    )
    (line,) = says(output)
    pattern = r"has waited ([5-9]|1[0-3])(\.\d)? s at the rendezvous \S+ for rank 1 of 2"
    assert re.search(pattern, line), output
    assert re.search(r"TimeoutError: .* within 14 s: missing rank 1 of 2", output), output


@pytest.mark.parametrize("who", ["rank", "server"])
def test_who_does_not_find_rank_zero_says_so_again_and_again(who: str, free_port: int) -> None:
    place = {"HERRING_RENDEZVOUS": f"127.0.0.1:{free_port}"}
    if who == "rank":
        place |= {"HERRING_RANK": "1", "HERRING_SIZE": "2"}
    output = run(
        INIT if who == "rank" else SERVER,
        **place,
        HERRING_CONNECT_TIMEOUT="8",
        HERRING_WARN_AFTER="0.2",
    )
    lines = says(output)  # after 0.2, 0.6, 1.4, 3 and 6.2 s; a busy machine may print fewer
    assert 2 <= len(lines) <= 5, output
    for line in lines:
        assert f"for rank 0 at the rendezvous 127.0.0.1:{free_port}: " in line
    assert "(HERRING_CONNECT_TIMEOUT)" in output


def test_a_server_without_a_secret_says_where_rank_zero_is_to_listen(free_port: int) -> None:
    output = run(
        SERVER,
        HERRING_SECRET="",
        HERRING_RENDEZVOUS=f"127.0.0.1:{free_port}",
        HERRING_CONNECT_TIMEOUT="8",
        HERRING_WARN_AFTER="0.2",
    )
    lines = says(output)
    assert len(lines) >= 2, output
    assert all(f"for rank 0 to listen at 127.0.0.1:{free_port}" in line for line in lines), output
    assert "has waited 8 s (HERRING_CONNECT_TIMEOUT) for rank 0 to listen at" in output


def test_a_server_that_stays_does_not_begin_again_with_its_reminders(free_port: int) -> None:
    server = subprocess.Popen(
        [sys.executable, *SERVER, "--stay"],
        env={
            **clean(),
            "HERRING_SECRET": SECRET,
            "HERRING_RENDEZVOUS": f"127.0.0.1:{free_port}",
            "HERRING_CONNECT_TIMEOUT": "0.5",
            "HERRING_WARN_AFTER": "0.2",
        },
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stderr is not None
        lines = [server.stderr.readline() for _ in range(3)]
    finally:
        server.terminate()
        server.wait(600)
        server.stderr.close()
    waited = [float(re.search(r"has waited ([\d.]+) s", line)[1]) for line in lines]
    # The server waits in several calls of 0.5 s. If each call began again, all would report 0.2 s.
    assert waited == sorted(waited) and waited[2] >= 1.0, lines


def test_a_server_between_two_jobs_does_not_complain(free_port: int) -> None:
    common = {
        **clean(),
        "HERRING_SECRET": SECRET,
        "HERRING_RENDEZVOUS": f"127.0.0.1:{free_port}",
        "HERRING_WARN_AFTER": "0.1",
        "HERRING_LOG_LEVEL": "info",
    }
    server = subprocess.Popen(
        [sys.executable, *SERVER, "--stay"], env=common, stderr=subprocess.PIPE, text=True
    )
    worker = "import herring; herring.init(); herring.barrier(); herring.shutdown()"
    place = {"HERRING_RANK": "0", "HERRING_SIZE": "1", "HERRING_SERVERS": "1"}
    try:
        assert server.stderr is not None
        for _ in range(3):  # each job takes longer to start than a reminder
            subprocess.run([sys.executable, "-c", worker], env={**common, **place}, check=True)
        server.terminate()
        text = server.stderr.read()
    finally:
        server.kill()
        server.wait(600)
        server.stderr.close()
    assert text.count("the job has ended") >= 2, text
    assert "has waited" not in text.partition("the job has ended")[2], text


def test_reminders_of_waits_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    from herring import _core

    said: list[str] = []
    now = [100.0]
    monkeypatch.setattr(_core, "log_warning", said.append)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    wait = Wait("rank 1 of 2", 60.0, start=0.0)
    assert wait.quiet() == 5.0
    while wait.goes_on("start"):
        now[0] += 0.5
    assert said == [
        f"rank 1 of 2 has waited {seconds} s for rank 0 to start" for seconds in (5, 15, 35)
    ]
    said.clear()
    later = Wait("this server", 60.0, before=60.0, start=0.0)
    while later.goes_on("start"):
        now[0] += 0.5
    assert [line.split()[4] for line in said] == ["75"]


def test_reminders_are_information_for_as_long_as_a_start_may_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from herring import _core
    from herring.base import proc

    said: list[tuple[str, str]] = []
    now = [100.0]
    for level in ("info", "warning"):
        monkeypatch.setattr(
            _core, f"log_{level}", lambda text, level=level: said.append((level, text.split()[3]))
        )
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    for age, expected in ((1.0, 5), (12.0, 15), (3600.0, 35)):
        monkeypatch.setattr(proc, "age", lambda age=age: age)
        said.clear()
        wait = Wait("server", 60.0)
        while wait.goes_on("start"):
            now[0] += 0.5
        warned = [level for level, _ in said].index("warning")
        assert said[warned] == ("warning", f"{expected}"), said
        levels = [level for level, _ in said]
        assert levels == ["info"] * warned + ["warning"] * (len(said) - warned), said
    said.clear()
    early = Wait("server", 1.0, first_reminder=0.5)  # HERRING_WARN_AFTER=0.5
    while early.goes_on("start"):
        now[0] += 0.1
    assert [level for level, _ in said] == ["warning"]


@pytest.mark.parametrize("level", ["warning", "info"])
def test_a_rank_zero_that_still_imports_is_no_warning(level: str) -> None:
    # As in jobs of 'herring run': the launcher holds the port until rank 0 comes to init().
    with socket.create_server(("127.0.0.1", 0)) as holder:
        output = run(
            SERVER,
            HERRING_RENDEZVOUS=f"127.0.0.1:{holder.getsockname()[1]}",
            HERRING_CONNECT_TIMEOUT="7",
            HERRING_LOG_LEVEL=level,
        )
    assert says(output) == [], output
    assert "accepts connections but did not complete the hello" in output
    told = re.findall(r"info: has waited (5|6)(?:\.\d)? s for rank 0 at the rendezvous", output)
    assert len(told) == (level == "info"), output


def test_rank_zero_with_a_foreign_address_says_so(free_port: int) -> None:
    # 192.0.2.0/24 is reserved for documentation, so no machine has this address.
    output = run(
        INIT,
        HERRING_RANK="0",
        HERRING_SIZE="2",
        HERRING_RENDEZVOUS=f"192.0.2.9:{free_port}",
        HERRING_CONNECT_TIMEOUT="2",
    )
    assert "HERRING_RENDEZVOUS names 192.0.2.9, which is not an address of rank 0's host" in output


DIFFERENT = """
herring.init()
rank = herring.rank()
call = herring.allreduce if rank == 0 else herring.allgather
x = np.ones(4, np.float32)
try:
    call(x, timeout=8.0)
except herring.TimeoutError as error:
    print(rank, "error", error)
herring.barrier(name="end")
"""


@pytest.mark.parametrize("layout", [["-n", "2"], ["-n", "2", "--nodes", "2", "--servers", "3"]])
def test_ranks_in_different_calls_are_told_early_who_waits_where(layout: list[str]) -> None:
    # With several servers, the names of the calls have different owners.
    job = run_job(layout, DIFFERENT, HERRING_WARN_AFTER="1")
    expect_success(job)
    for rank, other, name in ((0, 1, "allgather"), (1, 0, "allreduce")):
        pattern = rf"\[herring rank {rank}\] warning: \w+ '\S+' has waited .* for rank {other} "
        lines = [line for line in job.stdout.splitlines() if re.search(pattern, line)]
        assert any(f"rank {other} waits in {name} '" in line for line in lines), job.stdout
    # The timeout errors name the other rank's call too.
    assert re.search(r"0 error .*did not call it; rank 1 waits in allgather '", job.stdout)
    assert re.search(r"1 error .*did not call it; rank 0 waits in allreduce '", job.stdout)


def test_a_thread_that_comes_late_completes_what_seemed_stuck(tmp_path: Path) -> None:
    job = run_job(
        ["-n", "2", "--nodes", "2"],
        program("late_thread"),
        HERRING_WARN_AFTER="1",
        FOLDER=str(tmp_path),
    )
    expect_success(job)
    assert "rank 1 waits in barrier 'b'" in job.stdout
    assert "done 0" in job.stdout and "done 1" in job.stdout


@pytest.mark.parametrize("servers", ["0", "2"])
def test_everything_listens_in_the_range(servers: str) -> None:
    with block(40) as chosen:
        job = run_job(
            ["-n", "4", "--nodes", "2", "--servers", servers],
            program("listening"),
            HERRING_PORTS=f"{chosen[0]}-{chosen[-1]}",
        )
    expect_success(job)
    found = [int(port) for port in re.findall(r"\d+", " ".join(
        re.findall(r"ports (.*)", job.stdout)))]  # fmt: skip
    assert len(found) >= 4  # Each rank listens for its mesh, and rank 0 for the rendezvous.
    assert all(port in chosen for port in found), (found, chosen)


def test_a_range_that_is_used_up_is_named() -> None:
    with block(2) as chosen:
        job = run_job(
            ["-n", "2", "--nodes", "2"],
            "herring.init()",
            HERRING_PORTS=f"{chosen[0]}-{chosen[-1]}",
            HERRING_CONNECT_TIMEOUT="20",
        )
    assert job.returncode != 0
    assert f"HERRING_PORTS={chosen[0]}-{chosen[-1]} is used up" in job.stdout, job.stdout


def test_ports_of_the_launchers_side() -> None:
    with block(3) as chosen, contextlib.ExitStack() as stack:
        environ = {"HERRING_PORTS": f"{chosen[0]}-{chosen[-1]}"}
        with pytest.raises(ConfigurationError, match="is used up: none of its 3 ports is free"):
            for _ in range(4):
                listener = stack.enter_context(bind_any("127.0.0.1", environ))
                assert listener.getsockname()[1] in chosen
        assert stack.enter_context(bind_any("127.0.0.1", {})).getsockname()[1] > 0
    with pytest.raises(OSError):
        bind("192.0.2.1", 0)
    with pytest.raises(OSError):
        bind_any("192.0.2.1", environ)


def test_a_port_that_slurm_derives_is_in_the_upper_half() -> None:
    env = {"SLURM_JOB_NODELIST": "n[1-2]", "HERRING_PORTS": "30000-30009"}
    found = {
        slurm.rendezvous({**env, "SLURM_JOB_ID": str(number)}, "herring", True)[1]
        for number in range(50)
    }
    assert found == set(range(30005, 30010))
    one = {**env, "SLURM_JOB_ID": "7", "HERRING_PORTS": "30000"}
    assert slurm.rendezvous(one, "herring", True) == ("n1", 30000)
