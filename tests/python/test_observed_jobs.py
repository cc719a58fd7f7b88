"""`herring status` with real jobs: finding them, asking them, and what they leave behind."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import warm
from herring.base import user_folder
from jobs import LAYOUTS, expect_success, run_job
from launched import HERRING, Job
from ports import held, port_of

HOST = socket.gethostname()
# Every rank of a job says when it begins, and goes on until its input ends or a signal comes.
STEPS = """
import os, signal, sys, threading, time
import numpy as np
import herring
herring.init()
rank = herring.rank()
herring.barrier()
print(f"begun rank={rank} pid={os.getpid()} place", flush=True)
goes_on = True
n = 0
while goes_on:
    if rank == int(os.environ.get("LATE", "-1")):
        time.sleep(0.15)
    time.sleep(0.01)
    herring.allreduce(np.ones(1000), name="x")
    n += 1
    enough = os.path.exists(os.environ.get("ENOUGH", ""))
    goes_on = herring.allreduce(np.array([not enough]), op="min", name="go")[0]
"""


@pytest.fixture
def runtime(runtime_folder: Path) -> Path:
    """The folder of the sockets, for jobs and for those who ask."""
    return runtime_folder / "herring"


class Running(Job):
    """A job of Herring's own launcher with the program above; ends with the block."""

    def __init__(self, size: int = 3, *options: str, script: str = STEPS, **variables: str) -> None:
        env = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
        super().__init__(
            *("-n", str(size), "--grace", "1", *options, "--", sys.executable, "-c", script),
            env=env,
        )
        self.said: list[str] = []
        self.pids: dict[int, int] = {}
        while len(self.pids) < size:
            (line,) = self.lines(1)
            assert line, "\n".join(self.said)
            self.said.append(line)
            if match := re.search(r"begun rank=(\d+) pid=(\d+)", line):
                self.pids[int(match[1])] = int(match[2])

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        for number in (signal.SIGINT, signal.SIGKILL):
            if self.process.poll() is None:
                self.process.send_signal(number)
                try:
                    self.rest = self.end()[1]
                except subprocess.TimeoutExpired:
                    continue

    @property
    def where(self) -> str:
        """The socket; other jobs of this user may run on this machine."""
        found = [
            path for folder in user_folder.candidates(os.environ) for path in folder.glob("*.sock")
        ]
        (path,) = [path for path in found if path.stem.endswith(f"-{self.pids[0]}")]
        return str(path)

    def signal(self, rank: int, number: int) -> None:
        os.kill(self.pids[rank], number)


def ask(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return warm.run(
        [*HERRING, "status", *arguments],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def status_of(*arguments: str) -> dict[str, Any]:
    done = ask(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def until(true: Callable[[], Any]) -> Any:
    end = time.monotonic() + 100
    while not (found := true()) and time.monotonic() < end:
        time.sleep(0.1)
    assert found
    return found


def sockets(runtime: Path) -> list[Path]:
    return sorted(runtime.iterdir()) if runtime.exists() else []


def test_a_late_rank_is_shown(runtime: Path) -> None:
    with Running(LATE="1") as job:
        (socket_of,) = sockets(runtime)
        assert socket_of.name.endswith(f"-{job.pids[0]}.sock")
        assert runtime.stat().st_mode & 0o777 == 0o700
        late = until(lambda: [one for one in status_of(job.where)["ranks"] if one["chronic"]])
        assert [one["rank"] for one in late] == [1]
        text = ask(job.where).stdout
        assert ": 3 ranks on 1 node" in text and f"rank 1 ({HOST}" in text
        everything = status_of(job.where)
        for one in (*everything["ranks"], *everything["servers"]):
            assert (one["host"], one["address"]) == (HOST, "127.0.0.1")
        assert everything["herring"] and everything["size"] == 3
        assert [one["pid"] for one in everything["ranks"]] == [job.pids[n] for n in range(3)]
        assert ask("--job", everything["job"], "--all").returncode == 0
        metrics = ask(job.where, "--metrics").stdout
        assert "herring_rank_chronic" in metrics and f',host="{HOST}"' in metrics
    assert not sockets(runtime)


def test_ranks_that_stand_still(runtime: Path) -> None:
    with Running() as job:
        job.signal(2, signal.SIGSTOP)
        stopped = until(
            lambda: [one for one in status_of(job.where)["ranks"] if one["state"] == "stopped"]
        )
        assert [one["rank"] for one in stopped] == [2]
        until(
            lambda: (
                status_of(job.where)["missing"]
                and status_of(job.where)["missing"][0]["ranks"] == [2]
            )
        )
        text = ask(job.where).stdout
        assert "stopped for" in text and re.search(r"'x'|'go'", text) and "for rank 2" in text
        job.signal(2, signal.SIGCONT)
        until(lambda: not status_of(job.where)["missing"])


def test_a_rank_that_waits_in_a_message(runtime: Path) -> None:
    # Rank 2 waits for a message of rank 1, which waits until rank 0 receives one.
    waits = """
if rank == 1: herring.send(np.ones(4), to=0, tag=5)
if rank == 2: herring.receive(np.ones(4), 1, tag=7)
while rank == 0: time.sleep(0.1)
"""
    script = STEPS.replace("n = 0", waits)
    with Running(script=script) as job:
        chain = until(
            lambda: (
                len(found := status_of(job.where)["missing"]) == 2
                and min(each["for"] for each in found) > 1
                and found
            )
        )
        assert [(each["what"], each["by"], each["ranks"]) for each in chain] == [
            ("send to rank 0 (tag 5)", 1, [0]),
            ("receive from rank 1 (tag 7)", 2, [1]),
        ]
        said = ask(job.where).stdout
        assert re.search(
            r"rank 0 never received the message for which rank 1 has waited for [\d.]+ s: "
            r"send to rank 0 \(tag 5\)\.\n"
            r"rank 1 never sent the message for which rank 2 has waited for [\d.]+ s: "
            r"receive from rank 1 \(tag 7\); rank 1 waits in send 'send 0' \(rank 0\)\.",
            said,
        ), said
        assert "No rank or server stands out" not in said
        samples = ask(job.where, "--metrics").stdout
        for rank, missing in (0, True), (1, True), (2, False):
            pattern = rf'herring_rank_missing_seconds{{.*rank="{rank}".*}} (.*)'
            assert (float(re.search(pattern, samples)[1]) > 0) is missing


def test_the_place_in_the_program_of_a_rank_for_which_others_wait(runtime: Path) -> None:
    script = STEPS.replace(
        "n += 1",
        "n += 1\n    def dawdle(): time.sleep(99)\n    if rank == 1 and n == 20: dawdle()",
    )
    with Running(script=script) as job:
        slow = until(lambda: [one for one in status_of(job.where)["ranks"] if one["stack"]])
        assert [one["rank"] for one in slow] == [1]
        assert "dawdle" in slow[0]["stack"] and slow[0]["state"] == "computing"
        until(lambda: "dawdle" in ask(job.where).stdout)


def test_two_jobs_at_once(runtime: Path) -> None:
    with Running(1), Running(2):
        text = ask().stdout
        assert ": 1 rank on" in text and ": 2 ranks on" in text
        names = [path.stem.rpartition("-")[0] for path in sockets(runtime)]
        assert sorted(status_of("--job", name)["size"] for name in names) == [1, 2]
        assert ask("--json").returncode == 2
        assert len(sockets(runtime)) == 2
    assert not sockets(runtime)


def test_a_job_with_a_name_that_the_next_one_has_too(runtime: Path) -> None:
    ids = set()
    for _ in range(2):
        with Running(1, "--name", "resnet"):
            status = status_of("--job", "resnet")
            assert status["job"] == "resnet" and status["id"].startswith("run-")
            ids.add(status["id"])
            assert status_of("--job", status["id"])["job"] == "resnet"
            found = ask("--job", "resnet", "--metrics").stdout
            assert f'herring_job_info{{job="resnet",version="{status["herring"]}"' in found
            assert f',id="{status["id"]}"}} 1' in found
    assert len(ids) == 2
    done = warm.run(
        [*HERRING, "run", "--name", 'a"b', "--", "true"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2 and "letters, digits, dots, underscores or hyphens" in done.stderr


def test_sockets_of_killed_jobs_are_removed_by_the_next_one(runtime: Path) -> None:
    with Running(2) as job:
        job.signal(0, signal.SIGKILL)
        job.end()
        assert len(sockets(runtime)) == 1
        done = ask()
        assert "its job is gone" in done.stderr
    with Running(1) as job:
        (left,) = sockets(runtime)
        assert left.name.endswith(f"-{job.pids[0]}.sock")


def test_jobs_in_turn_in_one_process(runtime: Path) -> None:
    script = """
from pathlib import Path
folder = Path(os.environ["XDG_RUNTIME_DIR"]) / "herring"
for n in range(3):
    herring.init()
    herring.barrier()
    found = [path.name for path in folder.iterdir()]
    assert len(found) == 1, found
    herring.barrier()
    herring.shutdown()
    assert herring.init.__name__ and signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL
"""
    expect_success(run_job(LAYOUTS["one-node"], script))
    assert not sockets(runtime)


@pytest.mark.parametrize(("name", "value"), [("HERRING_STATUS", "off"), ("HERRING_OBSERVE", "0")])
def test_a_job_that_is_not_to_be_asked(name: str, value: str, runtime: Path) -> None:
    threads = """
herring.init()
herring.allreduce(np.ones(3))
from support import has_thread, until
if os.environ.get("HERRING_STATUS") == "off":
    until(lambda: has_thread("report"))  # A thread has its name a little after it has begun.
print("THREADS", "herring-report" if has_thread("report") else "")
herring.barrier()
"""
    out = expect_success(run_job(LAYOUTS["colocated-servers"], threads, **{name: value}))
    assert not sockets(runtime)
    assert ("herring-report" in out) == (name == "HERRING_STATUS"), out


def test_a_taken_port_ends_no_job(runtime: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        out = expect_success(run_job(LAYOUTS["one-node"], "herring.init()", HERRING_STATUS=place))
    assert f"herring status cannot ask this job at {place}, which goes on: " in out


def test_a_job_with_an_address_is_found_on_its_machine(runtime: Path) -> None:
    with held() as holder:
        place = f"127.0.0.1:{port_of(holder)}"
        with Running(2, HERRING_STATUS=place) as job:
            assert [path.name for path in sockets(runtime)] == [Path(job.where).name]
            # Without --job, jobs of other tests would be found, too.
            found = Path(job.where).stem.rpartition("-")[0]
            assert status_of("--job", found)["size"] == status_of(place)["size"] == 2
            assert status_of("--job", found)["ranks"][0]["pid"] == job.pids[0]
    assert not sockets(runtime)


@pytest.mark.parametrize("value", ["here", "host:", "127.0.0.1:99999", ":9400", ""])
def test_a_wrong_address_is_told(value: str, runtime: Path) -> None:
    job = run_job(LAYOUTS["alone"], "herring.init(); print('ran')", HERRING_STATUS=value)
    assert "HERRING_STATUS" in job.stdout or value == "", job.stdout


def own_address() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no address beyond loopback")
        return probe.getsockname()[0]


def test_a_job_beyond_loopback_asks_for_its_secret(runtime: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef" * 4 + "\n")
    secret.chmod(0o600)
    wrong = tmp_path / "wrong"
    wrong.write_text("fedcba9876543210" * 4 + "\n")
    wrong.chmod(0o600)
    holders = [held(own_address()), held()]
    place = f"{own_address()}:{port_of(holders[0])}"
    # Jobs of 'herring run' have secrets of their own, which nobody else knows.
    variables = {
        "HERRING_RANK": "0",
        "HERRING_SIZE": "1",
        "HERRING_RENDEZVOUS": f"127.0.0.1:{port_of(holders[1])}",
        "HERRING_SECRET_FILE": str(secret),
        "HERRING_STATUS": place,
    }
    job = warm.Popen(
        [sys.executable, "-c", STEPS], env={**os.environ, **variables}, stdout=subprocess.PIPE
    )
    try:
        assert job.stdout.readline().startswith(b"begun ")
        assert len(sockets(runtime)) == 1  # for its user, who need prove nothing
        done = ask(place, "--json", HERRING_SECRET_FILE=str(secret))
        assert done.returncode == 0 and json.loads(done.stdout)["size"] == 1, done.stderr
        done = ask(place, HERRING_SECRET_FILE=str(wrong))
        assert done.returncode == 1 and "knows the job's secret" in done.stderr
        done = ask(place, HERRING_SECRET_FILE="", HERRING_SECRET="")
        assert done.returncode == 1 and "HERRING_SECRET_FILE" in done.stderr
        done = ask(place, "--record", HERRING_SECRET_FILE=str(secret))
        assert done.returncode == 1 and "this address answers" in done.stderr
        token = ask("--token", HERRING_SECRET_FILE=str(secret))
        assert token.returncode == 0, token.stderr
        assert metrics(place, token.stdout.strip()).startswith("HTTP/1.1 200 ")
        assert metrics(place, "wrong").startswith("HTTP/1.1 401 ")
    finally:
        job.kill()
        job.wait()
        for holder in holders:
            holder.close()


def test_a_job_of_herring_run_beyond_loopback_is_asked_with_the_file(
    runtime: Path, tmp_path: Path
) -> None:
    secret, wrong = tmp_path / "secret", tmp_path / "wrong"
    for path, text in ((secret, "0123456789abcdef"), (wrong, "fedcba9876543210")):
        path.write_text(text * 4 + "\n")
        path.chmod(0o600)
    holder = held(own_address())
    place = f"{own_address()}:{port_of(holder)}"
    with holder, Running(2, HERRING_STATUS=place, HERRING_SECRET_FILE=str(secret)):
        done = ask(place, "--json", HERRING_SECRET_FILE=str(secret))
        assert done.returncode == 0 and json.loads(done.stdout)["size"] == 2, done.stderr
        done = ask(place, HERRING_SECRET_FILE=str(wrong))
        assert done.returncode == 1 and "knows the job's secret" in done.stderr
        token = ask("--token", HERRING_SECRET_FILE=str(secret)).stdout.strip()
        assert metrics(place, token).startswith("HTTP/1.1 200 ")
        assert metrics(place, "wrong").startswith("HTTP/1.1 401 ")
    assert secret.stat().st_mode & 0o777 == 0o600


GROUPS = STEPS.replace(
    'print(f"begun',
    """pair = herring.new_group([0, 2], name="pair") if rank != 1 else None
for _ in range(5):
    if pair is not None:
        herring.allreduce(np.ones(100_000), name="in the pair", group=pair)
if rank == 0:
    waits = threading.Thread(target=herring.barrier, kwargs={"group": pair, "name": "alone"})
    waits.start()
print(f"begun""",
)


def test_groups_and_operations_are_shown(runtime: Path) -> None:
    with Running(script=GROUPS) as job:
        pair = until(lambda: [one for one in status_of(job.where)["groups"] if one["outlier"]])[0]
        assert (pair["name"], pair["ranks"], pair["calls"]) == ("pair", [0, 2], 6)
        assert (pair["in_flight"], pair["absent"]) == (1, [2]) and pair["for"] >= 1
        world = status_of(job.where)["groups"][0]
        assert (world["group"], world["name"], world["size"]) == (0, "world", 3)
        assert world["calls"] > 5 and not world["outlier"]
        text = ask(job.where).stdout
        assert re.search(r"group \d+ 'pair' \(ranks 0, 2\): 1 in flight.* on rank 2", text), text
        every = ask(job.where, "--all").stdout
        assert re.search(r"^ *\d+ +pair +2 +0 +6 +1 ", every, re.MULTILINE), every
        numbers = {
            (one["collective"], one["message_size"]): one
            for one in status_of(job.where)["operations"]
        }
        large = numbers["allreduce", "64KB-1MB"]
        assert (large["ended"], large["bytes"]) == (10, 10 * 800_000) and large["seconds"] > 0
        assert numbers["allreduce", "0-4KB"]["ended"] > 5
        found = ask(job.where, "--metrics").stdout
        of = 'comm_name="pair",nranks="2"'
        assert re.search(rf"^herring_group_calls_total{{.*{of}}} 6$", found, re.MULTILINE), found


TORCH = """
import os, time
import torch
import torch.distributed as dist
import herring.torch
dist.init_process_group("herring")
rank = dist.get_rank()
described = dist.new_group([0, 1], group_desc="mesh_tp")
plain = dist.new_group([0, 1])
print(f"begun rank={rank} pid={os.getpid()} place", flush=True)
go = torch.ones(1)
while go.item():
    dist.all_reduce(torch.ones(4), group=described)
    dist.all_reduce(torch.ones(4), group=plain)
    dist.all_reduce(go, dist.ReduceOp.MIN)
    time.sleep(0.01)
"""


def test_groups_of_torch_have_the_names_that_torch_gave(runtime: Path) -> None:
    pytest.importorskip("torch")
    with Running(2, script=TORCH) as job:
        groups = until(
            lambda: status_of(job.where)["groups"][2:] and status_of(job.where)["groups"]
        )
        names = sorted(one["name"] for one in groups)
        assert names == ["2", "default_pg", "mesh_tp"]
        assert all(one["ranks"] == [0, 1] for one in groups)


def metrics(place: str, token: str) -> str:
    host, _, port = place.rpartition(":")
    with socket.create_connection((host, int(port)), 20) as connection:
        connection.sendall(
            f"GET /metrics HTTP/1.1\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
        )
        return b"".join(iter(lambda: connection.recv(65536), b"")).decode()


def test_a_forked_child_does_not_keep_the_socket(runtime: Path, tmp_path: Path) -> None:
    script = STEPS.replace(
        'print(f"begun',
        'if rank == 0 and os.fork() == 0:\n    time.sleep(600)\n    os._exit(0)\nprint(f"begun',
    )
    enough = tmp_path / "enough"
    with Running(2, "--grace", "0.2", script=script, ENOUGH=str(enough)) as job:
        (place,) = sockets(runtime)
        assert ask(job.where, "--json").returncode == 0
        enough.touch()
        until(lambda: not place.exists())


def test_sigusr1_writes_the_status_to_the_log(runtime: Path) -> None:
    with Running(3) as job:
        job.process.send_signal(signal.SIGUSR1)
        line = until(lambda: next(iter(job.lines(1)), None))
        while "status (SIGUSR1)" not in line:
            (line,) = job.lines(1)
        assert re.search(r"rank 0\] .*status \(SIGUSR1\): job .*3 ranks", line), line
        assert job.process.poll() is None


def test_sigusr1_of_a_program_stays_its_own(runtime: Path) -> None:
    script = """
came = []
if os.environ["WHEN"] == "before":
    signal.signal(signal.SIGUSR1, lambda *_: came.append(1))
herring.init()
if os.environ["WHEN"] == "after":
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL
    signal.signal(signal.SIGUSR1, lambda *_: came.append(1))
herring.barrier()
os.kill(os.getpid(), signal.SIGUSR1)
while not came:
    time.sleep(0.01)
assert came == [1]
herring.shutdown()
os.kill(os.getpid(), signal.SIGUSR1)
assert came == [1, 1]
"""
    for when in ("before", "after"):
        assert "status (" not in expect_success(run_job(LAYOUTS["one-node"], script, WHEN=when))
    for variables in ({"HERRING_STATUS": "off"}, {"HERRING_OBSERVE": "0"}):
        kill = "herring.init(); herring.barrier(); os.kill(os.getpid(), signal.SIGUSR1)"
        assert run_job(LAYOUTS["alone"], kill, **variables).returncode == 128 + signal.SIGUSR1
