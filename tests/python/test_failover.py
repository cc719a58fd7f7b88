"""Jobs that survive the loss of a dedicated server, with `herring run` and `herring server`."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import warm
from jobs import expect_success, program, run_job
from launched import HERRING
from ports import held, port_of

TWO_SERVERS = ["-n", "3", "--nodes", "2", "--servers", "2"]


@pytest.fixture
def place(runtime_folder: Path, tmp_path: Path) -> dict[str, str]:
    """Variables of jobs that find their own status, and meet in a folder."""
    return {"HERRING_FAILOVER": "true", "FAILOVER_FOLDER": str(tmp_path)}


@pytest.mark.parametrize(
    "events",
    [["kill 1"], ["kill 0", "kill 1", "kill 0"], ["stop 1"], ["break 1", "break 0"]],
    ids=["killed", "killed-in-turn", "stopped", "cut-off"],
)
def test_servers_that_die_between_rounds_are_replaced(
    place: dict[str, str], events: list[str]
) -> None:
    job = run_job(TWO_SERVERS, program("failover_rounds", *events), **place)
    output = expect_success(job)
    assert output.count("is done") == 3, output
    for event in events:
        index = int(event.split()[1])
        for said in (
            rf"server {index} \([\d.:]+\) is lost: .*; server {1 - index} stands in for it",
            rf"server {index} \([\d.:]+\) is replaced by the server at",
        ):
            assert re.search(said, output), output
    # The launcher calls a server as the job does. One that lives comes back by itself.
    started = re.findall(r"server (\d) \(process \d+\) .*; starting another one", output)
    assert started == [event.split()[1] for event in events if "break" not in event], output
    how = {
        "kill": "its connection ended",
        "stop": "nothing was heard from it for",
        "break": "cannot reach it: connection to",
    }
    assert how[events[0].split()[0]] in output


def test_news_of_a_server_may_come_late(place: dict[str, str]) -> None:
    layout = ["-n", "2", "--nodes", "2", "--servers", "2"]
    output = expect_success(run_job(layout, program("failover_slow_chief"), **place))
    assert output.count("is done") == 2 and "server 0 stands in for it" in output, output


def test_calls_that_wait_for_a_rank_outlive_their_server(place: dict[str, str]) -> None:
    job = run_job(TWO_SERVERS, program("failover_names"), **place)
    output = expect_success(job)
    assert output.count("is done") == 3, output


def test_groups_are_formed_although_servers_die(place: dict[str, str]) -> None:
    layout = ["-n", "4", "--nodes", "2", "--servers", "2"]
    job = run_job(layout, program("failover_groups", "4"), **place)
    output = expect_success(job)
    assert output.count("is done after") == 4, output


@pytest.mark.parametrize(
    ("workers", "nodes", "variables"),
    [
        (3, 3, {}),
        (3, 2, {}),
        (4, 2, {"HERRING_FLOWS": "2"}),
        (3, 2, {"HERRING_TLS": "psk"}),
    ],
    ids=["one-on-each-node", "uneven-nodes", "several-flows", "encrypted"],
)
def test_calls_in_flight_outlive_servers(
    place: dict[str, str], workers: int, nodes: int, variables: dict[str, str]
) -> None:
    layout = ["-n", str(workers), "--nodes", str(nodes), "--servers", "2"]
    script = program("failover_exchanges", "4")
    output = expect_success(run_job(layout, script, **variables, **place))
    assert output.count("is done after") == workers, output


@pytest.mark.parametrize("nodes", [3, 2])
def test_messages_outlive_servers(place: dict[str, str], nodes: int) -> None:
    layout = ["-n", "3", "--nodes", str(nodes), "--servers", "2"]
    job = run_job(layout, program("failover_messages", "4"), **place)
    output = expect_success(job)
    assert output.count("is done after") == 3, output


@pytest.mark.parametrize(
    ("workers", "nodes", "flows"),
    [(3, 3, 1), (3, 2, 1), (4, 2, 2)],
    ids=["one-on-each-node", "uneven-nodes", "several-flows"],
)
def test_joins_outlive_servers(place: dict[str, str], workers: int, nodes: int, flows: int) -> None:
    layout = ["-n", str(workers), "--nodes", str(nodes), "--servers", "2"]
    script = program("failover_joins", "4")
    job = run_job(layout, script, HERRING_FLOWS=str(flows), **place)
    output = expect_success(job)
    assert output.count("is done after") == workers, output


@pytest.mark.parametrize(
    ("servers", "deaths"),
    [
        ("3", ["none", "0", "1", "2", "0", "1", "2"]),
        ("2", ["1", "1", "0", "1"]),
    ],
    ids=["dedicated-alone", "one-before-the-first-series"],
)
def test_partial_all_reduces_outlive_servers(
    place: dict[str, str], servers: str, deaths: list[str], tmp_path: Path
) -> None:
    layout = ["-n", "3", "--nodes", "3", "--servers", servers]
    script = program("failover_partial", *deaths)
    job = run_job(layout, script, FOLDER=str(tmp_path), **place)
    output = expect_success(job)
    assert output.count("is done after") == 3, output


@pytest.mark.parametrize(
    ("workers", "nodes", "flows"),
    [(3, 3, 1), (3, 2, 1), (4, 2, 2)],
    ids=["one-on-each-node", "uneven-nodes", "several-flows"],
)
def test_what_ranks_keep_for_each_other_ends(
    place: dict[str, str], workers: int, nodes: int, flows: int, tmp_path: Path
) -> None:
    # With as many servers no worker has one, so a rank that stands still stops no server.
    layout = ["-n", str(workers), "--nodes", str(nodes), "--servers", str(nodes)]
    variables = {"HERRING_FLOWS": str(flows), "FOLDER": str(tmp_path)}
    job = run_job(layout, program("failover_memory"), timeout=120, **variables, **place)
    output = expect_success(job)
    assert output.count("keeps nothing") == workers, output


class ByHand:
    """Processes of a job without a launcher; they end with the block."""

    def __init__(self, **variables: str) -> None:
        self.holder = held()
        port = port_of(self.holder)
        own = {name: value for name, value in os.environ.items() if "HERRING" not in name}
        self.env = {
            **own,
            "HERRING_JOB": f"by-hand-{port}",
            "HERRING_RENDEZVOUS": f"127.0.0.1:{port}",
            "HERRING_SECRET": "5a" * 32,
            "HERRING_SIZE": "2",
            "HERRING_SERVERS": "2",
            "OMP_NUM_THREADS": "1",
            **variables,
        }
        self.processes: list[subprocess.Popen[str]] = []

    def __enter__(self) -> ByHand:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()
        self.holder.close()

    def start(self, words: list[str], **variables: str) -> subprocess.Popen[str]:
        process = warm.Popen(
            words,
            env={**self.env, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.processes.append(process)
        return process

    def server(self, *options: str, **variables: str) -> subprocess.Popen[str]:
        return self.start([*HERRING, "server", *options], **variables)

    def rank(self, rank: int, *events: str) -> subprocess.Popen[str]:
        words = [sys.executable, *program("failover_rounds", *events)]
        return self.start(words, HERRING_RANK=str(rank), HERRING_HOST_ID=f"node {rank}")


def output_of(process: subprocess.Popen[str]) -> str:
    return process.communicate(timeout=600)[0]


def read_until(process: subprocess.Popen[str], text: str) -> str:
    """Returns what the process has said when a line with the text has come."""
    said = ""
    while text not in said:
        line = process.stdout.readline()
        assert line, said
        said += line
    return said


def await_spares(servers: list[subprocess.Popen[str]], count: int) -> list[subprocess.Popen[str]]:
    """Returns those of the servers that wait as spares, when there are `count`."""
    spares = []
    streams = {server.stdout: server for server in servers}
    while len(spares) < count:
        ready, _, _ = select.select(list(streams), [], [], 60)
        assert ready
        for stream in ready:
            line = stream.readline()
            assert line, [server.poll() for server in servers]
            if "waits as a spare" in line:
                spares.append(streams.pop(stream))
    return spares


def test_a_spare_takes_the_place_of_a_server_that_dies(
    place: dict[str, str], tmp_path: Path
) -> None:
    with ByHand(**place) as job:
        ranks = [job.rank(rank, "await spares", "kill 1") for rank in range(2)]
        servers = [job.server() for _ in range(4)]
        # Two of them serve, and two wait.
        spares = await_spares(servers, 2)
        (tmp_path / "spares").touch()
        outputs = [output_of(rank) for rank in ranks]
        assert [rank.returncode for rank in ranks] == [0, 0], outputs
        assert "server 1 replaced" in outputs[0]
        said = [output_of(server) for server in servers]
        # The one that was killed; the others end with the job, whether they have served or not.
        codes = sorted(server.returncode for server in servers)
        assert codes == [-signal.SIGKILL, 0, 0, 0], said
        assert all(spare.returncode == 0 for spare in spares)


@pytest.mark.parametrize(
    ("spares", "options"),
    [(0, []), (1, []), (0, ["--stay"])],
    ids=["stood-in-for", "replaced", "stays"],
)
def test_a_server_that_wakes_up_late_changes_nothing(
    place: dict[str, str], spares: int, options: list[str], tmp_path: Path
) -> None:
    """It was given up while it stood still in a round, and goes on in a later one."""
    events = ["await spares", "pause 1", *["replaced 1"] * spares, "wake 1"]
    with ByHand(**place) as job:
        ranks = [job.rank(rank, *events) for rank in range(2)]
        servers = [job.server(*options, HERRING_LOG_LEVEL="info") for _ in range(2 + spares)]
        await_spares(servers, spares)
        (tmp_path / "spares").touch()
        pid = int(read_until(ranks[0], "stops process").split()[-1])
        [late] = [server for server in servers if server.pid == pid]
        # The ranks go on until it has ended, or serves again.
        said = read_until(late, "this server is given up, and the job goes on without it: this pro")
        assert "aborted" not in said and "flight" not in said, said
        if options:
            read_until(late, "serves in place of server 1, which is lost")
        else:
            assert (late.wait(600), late.stdout.read()) == (1, "")
        (tmp_path / "woken").touch()
        outputs = [output_of(rank) for rank in ranks]
        assert [rank.returncode for rank in ranks] == [0, 0], outputs
        assert outputs[0].count(" is lost: ") == 1, outputs
        assert outputs[0].count(" is replaced by ") == max(spares, len(options)), outputs


def test_a_late_server_is_told_what_it_would_take(place: dict[str, str], tmp_path: Path) -> None:
    with ByHand(**{**place, "HERRING_FAILOVER": "false"}) as job:
        ranks = [job.rank(rank, "await late") for rank in range(2)]
        servers = [job.server(HERRING_LOG_LEVEL="info") for _ in range(2)]
        while "serves 2 workers" not in (line := servers[0].stdout.readline()):
            assert line
        late = job.server()
        said = output_of(late)
        assert late.returncode != 0, said
        assert "HERRING_FAILOVER=true" in said
        (tmp_path / "late").touch()
        for process in [*ranks, *servers]:
            said = output_of(process)
            assert process.returncode == 0, said


# Two dedicated servers and those of the workers serve the job; the group has the first two only.
def test_a_group_without_servers_fails_and_the_job_goes_on(place: dict[str, str]) -> None:
    layout = ["-n", "3", "--nodes", "3", "--servers", "2"]
    output = expect_success(run_job(layout, program("failover_groups_alone"), **place))
    assert output.count("the group failed") == 2, output
    assert output.count("the job went on") == 3, output


def test_a_replacement_knows_who_has_destroyed_a_group(place: dict[str, str]) -> None:
    output = expect_success(run_job(TWO_SERVERS, program("failover_destroyed"), **place))
    assert output.count("told") == 3, output


def test_without_failover_a_dead_server_ends_the_job(place: dict[str, str]) -> None:
    place["HERRING_FAILOVER"] = "false"
    output = run_job([*TWO_SERVERS, "--keep-going"], program("killed_one_of_two"), **place).stdout
    assert output.count("told") == 3, output[-4000:]
    assert "starting another one" not in output


def test_the_only_server_ends_the_job(place: dict[str, str]) -> None:
    layout = ["-n", "2", "--servers", "1", "--keep-going"]
    output = run_job(layout, program("killed_one_of_two"), **place).stdout
    assert output.count("told") == 2, output[-4000:]
    assert "starting another one" not in output
