"""Timelines: their format, opening them in Perfetto, and files that cannot be written."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs import expect_success, program, run_job
from perfetto import Perfetto, why_no_perfetto
from traces import Slice, Trace

TWO_NODES = ["-n", "4", "--nodes", "2", "--servers", "2"]
STEPS = 20


@pytest.fixture(scope="module")
def timeline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A timeline of rounds, calls and a group, on two nodes with two servers."""
    path = tmp_path_factory.mktemp("timeline") / "job.json"
    job = run_job(TWO_NODES, program("timed"), HERRING_TIMELINE=str(path), HERRING_LOG_LEVEL="info")
    assert f"writes a timeline to {path}" in expect_success(job)
    return path


def test_it_is_complete_and_sound(timeline: Path) -> None:
    trace = Trace(timeline)
    host = socket.gethostname()
    ranks = [f"rank {i} ({host})" for i in range(4)]
    servers = [f"server {i} ({host})" for i in range(2)]
    assert sorted(trace.processes.values()) == ranks + servers
    assert set(trace.clocks) == {*ranks, *servers}
    for clock in trace.clocks.values():
        assert clock["lost"] == 0 and abs(clock["offset_us"]) <= clock["error_us"] < 5e6, clock
    for rank in ranks:
        for name in ("compute", "results"):
            rounds = [one.args["round"] for one in trace.of(name, rank, "model rounds")]
            assert rounds == list(range(STEPS)), (rank, name)
        computed = trace.of("compute", rank, "model rounds")
        assert all(one.end - one.begin > 4000 for one in computed)
        assert all(one.args["bytes"] == 1_200_000 for one in computed)
        for name in ("node stage", "push", "pull"):
            assert len(trace.of(name, rank, "model buffer 0")) == STEPS, (rank, name)
        assert len(trace.of("allreduce 'layer.weight'", rank, "calls")) == STEPS // 5
        assert len(trace.of("allreduce 'loss'", rank, "calls")) == STEPS // 5
        in_group = trace.of("results", rank, "half rounds of group 1")
        assert len(in_group) == (STEPS // 4 if rank[5] in "01" else 0)
    for name in ("receive", "sum", "send"):
        assert len(trace.of(name, servers[0], "model buffer 0")) == STEPS


def test_nothing_happens_before_its_cause(timeline: Path) -> None:
    trace = Trace(timeline)
    slack = 2 * max(clock["error_us"] for clock in trace.clocks.values()) + 0.2

    def round_of(one: Slice) -> tuple[str, int]:
        # Where a round begins before the one before has ended, it gets a row "model buffer 0 (2)".
        return one.row.partition(" (")[0], one.args["round"]

    pushed = defaultdict(list)
    for one in trace.of("push", "rank", "model buffer"):
        pushed[round_of(one)].append(one.begin)
    pulled = defaultdict(list)
    for one in trace.of("pull", "rank", "model buffer"):
        pulled[round_of(one)].append(one.end)
    sums = trace.of("sum", "server", "model buffer")
    assert sums
    for one in sums:
        key = round_of(one)
        # One rank of each of the two nodes contributes to a shard.
        assert one.begin >= sorted(pushed[key])[1] - slack
        assert one.end <= min(pulled[key]) + slack


@pytest.mark.skipif(why_no_perfetto() is not None, reason=str(why_no_perfetto()))
def test_perfetto_opens_it(timeline: Path) -> None:
    trace = Trace(timeline)
    with Perfetto(timeline) as perfetto:
        problems = "select name, value from stats where severity = 'error' and value > 0"
        assert perfetto.query(problems) == []
        found = perfetto.query(
            "select process.name as process, thread.name as row, slice.name as name, count(*) as n"
            " from slice join thread_track on slice.track_id = thread_track.id"
            " join thread using (utid) join process using (upid) group by 1, 2, 3"
        )
        rounds = perfetto.query(
            "select distinct extract_arg(arg_set_id, 'args.round') as round from slice"
            " where name = 'compute' order by 1"
        )
    counts: dict[tuple[str, str, str], int] = defaultdict(int)
    for one in trace.slices:
        counts[one.process, one.row, one.name] += 1
    assert {(one["process"], one["row"], one["name"]): one["n"] for one in found} == counts
    assert [one["round"] for one in rounds] == list(range(STEPS))


def test_one_after_the_other(tmp_path: Path) -> None:
    script = f"""
    os.chdir({str(tmp_path)!r})
    herring.init()
    herring.allreduce(np.ones(4), name="before")
    for path in ("first.json", "second.json"):
        herring.barrier()
        herring.start_timeline(path)
        if herring.rank() == 0:
            raises(herring.InvalidArgumentError, path, herring.start_timeline, "other.json")
        herring.barrier()
        for _ in range(50):
            herring.allreduce(np.ones(4), name=f"in {{path}}")
        herring.stop_timeline()
        if herring.rank() == 0:
            assert open(path).read().endswith("]\\n")
        herring.barrier()
        herring.allreduce(np.ones(4), name="between")
    herring.stop_timeline()
    """
    expect_success(run_job(["-n", "2", "--nodes", "2", "--servers", "1"], script))
    for path in ("first.json", "second.json"):
        trace = Trace(tmp_path / path)
        named = [one for one in trace.slices if one.name.startswith("allreduce")]
        assert {one.process[:6] for one in named} == {"rank 0", "rank 1"}
        for one in named:
            # What ended just before the timeline began is left out as far as the clocks are known.
            is_in = one.name == f"allreduce 'in {path}'"
            assert is_in or one.end <= trace.clocks[one.process]["error_us"] + 0.1, one
        assert sum(one.name == f"allreduce 'in {path}'" for one in named) > 50
    assert not (tmp_path / "other.json").exists()


def test_what_has_not_ended_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    script = """
    herring.init()
    if herring.rank() == 0:
        operation = herring.allreduce_async(np.ones(4), name="nobody else calls this")
        time.sleep(0.15)
        herring.stop_timeline()
    herring.barrier()
    os._exit(0)
    """
    run_job(["-n", "2"], script, HERRING_TIMELINE=str(path))
    (call,) = Trace(path).of("allreduce 'nobody else calls this'", "rank 0")
    assert call.args["ended"] is False and call.end - call.begin > 140_000


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """Mounts a file system that is soon full."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("cannot mount")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def lines_about(output: str) -> list[str]:
    return [line for line in output.splitlines() if "timeline" in line]


WRONG = {
    "no-folder": ("/nowhere/at/all.json", "cannot write /nowhere/at/all.json: No such file or"),
    "folder": ("/tmp", "cannot write /tmp: Is a directory"),
    "full": ("/dev/full", "cannot write /dev/full: No space left on device"),
}


@pytest.mark.parametrize("path, words", WRONG.values(), ids=WRONG)
def test_files_that_cannot_be_written(path: str, words: str) -> None:
    job = run_job(["-n", "2"], program("timed"), HERRING_TIMELINE=path)
    (line,) = lines_about(expect_success(job))
    assert words in line and "the job goes on" in line


def test_a_pipe_that_nobody_reads(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    job = run_job(["-n", "2"], program("timed"), HERRING_TIMELINE=str(path))
    (line,) = lines_about(expect_success(job))
    assert "nobody reads this pipe" in line and "the job goes on" in line


def test_a_pipe_whose_reader_is_slow(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # It never reads.
    try:
        job = run_job(
            ["-n", "2"], program("timed"), HERRING_TIMELINE=str(path), STEPS="300", COMPUTE="0.001"
        )
    finally:
        os.close(file)
    (line,) = lines_about(expect_success(job))
    assert "may be cut: the disk has not taken it in time" in line


def test_a_disk_that_gets_full(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "64k") as disk:
        path = disk / "job.json"
        job = run_job(
            ["-n", "2"], program("timed"), HERRING_TIMELINE=str(path), STEPS="400", COMPUTE="0.002"
        )
        (line,) = lines_about(expect_success(job))
        assert f"the timeline ends, and the job goes on: cannot write {path}: No space left" in line
        assert Trace(path, cut=True).of("compute")


def test_two_jobs_with_one_file(tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    outputs: list[str] = []

    def run(number: int) -> None:
        settings = {"HERRING_TIMELINE": str(path), "FOLDER": str(tmp_path), "NUMBER": str(number)}
        outputs.append(expect_success(run_job(["-n", "2"], program("timed"), **settings)))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (line,) = [line for output in outputs for line in lines_about(output)]
    assert f"cannot write {path}: another process writes it" in line
    assert len(Trace(path).of("compute", "rank 0", "model")) == STEPS


def test_the_program_is_told(tmp_path: Path) -> None:
    script = """
    herring.init()
    if herring.rank() == 0:
        raises(herring.ConfigurationError, "cannot write /nowhere/x.json", herring.start_timeline,
               "/nowhere/x.json")
    herring.barrier()
    herring.shutdown()
    raises(herring.ShutdownError, "", herring.start_timeline, "x.json")
    """
    expect_success(run_job(["-n", "2"], script))
    script = """
    herring.init()
    if herring.rank() == 0:
        raises(herring.ConfigurationError, "HERRING_OBSERVE", herring.start_timeline, "x.json")
    herring.barrier()
    """
    expect_success(run_job(["-n", "2"], script, HERRING_OBSERVE="0"))


def test_a_relative_path_is_rank_0s(tmp_path: Path) -> None:
    script = """
    herring.init()
    herring.allreduce(np.ones(3), name="x")
    """
    before = os.getcwd()
    os.chdir(tmp_path)
    try:
        expect_success(run_job(["-n", "2", "--timeline", "relative.json"], script))
    finally:
        os.chdir(before)
    assert len(Trace(tmp_path / "relative.json").of("allreduce 'x'")) == 2
