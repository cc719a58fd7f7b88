"""Kernels that do not end, drivers that fail and ranks that leave: every rank gets an error."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from gpus import BY_KERNELS, ENVIRONMENT, UNPINNED
from jobs import expect_success, program, run_job
from standin import STANDIN

pytestmark = STANDIN

# All timeouts are longer than a job may take, so none of them ends a wait.
LONG = {"HERRING_HEARTBEAT_TIMEOUT": "600", "HERRING_TIMEOUT": "600"}


# The kernel does not end before the plan is closed.
def test_a_plan_whose_gpu_hangs_is_closed_and_its_memory_stays() -> None:
    job = run_job(["-n", "1"], program("gpu_hangs"), HERRING_TIMEOUT="2", JITTER="0", **ENVIRONMENT)
    assert "closed" in job.stdout, job.stdout
    assert "'p': GPU 0 has not come to copies that were queued" in job.stdout, job.stdout
    assert "the memory of the plan is kept for ever" in job.stdout, job.stdout


def run_failing(calls: str, nth: int, sticky: bool) -> str:
    """Lets the n-th driver call of rank 0 fail, and returns the output of all ranks."""
    job = run_job(
        ["-n", "2", "--keep-going"],
        program("gpu_driver_fails"),
        CALLS=calls,
        NTH=str(nth),
        STICKY=str(int(sticky)),
        JITTER="0",
        HERRING_LOG_LEVEL="info",
        **LONG,
        **ENVIRONMENT,
    )
    return expect_success(job)


@pytest.mark.parametrize("sticky", [False, True], ids=["once", "for-ever"])
@pytest.mark.parametrize("calls", ["allreduces", "lists", "rounds", "casts"])
def test_a_driver_that_fails_ends_in_an_error_on_all_ranks(calls: str, sticky: bool) -> None:
    later = {"rounds": (109, 139, 179, 219, 239), "casts": (409, 509, 659, 709, 809)}
    for nth in (1, 9, 28, 44, 59, 79, *later.get(calls, ())):
        said = run_failing(calls, nth, sticky)
        # Some failed calls are no errors, and the program checks the results then. A failed query
        # only means an unknown feature, memory need not be pinned, and processors can add instead.
        # A resource whose release fails is simply dropped, also if it fails before (at the context
        # or the mode of captures), and a context that stays current does no harm.
        fine = (
            "cannot be pinned",
            "processors add for GPU",
            "processors cast them",
            "through host memory",
        )
        gone = re.search(
            r"failed call: cu\w+(Destroy|Free|Unregister|CloseMemHandle|PopCurrent|PushCurrent"
            r"|ExchangeStreamCaptureMode|HostRegister)\b",
            said,
        )
        closed = re.search(r"closed after call (\d+)", said)  # queued work ends then
        ends = gone is not None or (closed is not None and int(closed[1]) < nth)
        does_without = nth < 28 or ends or any(text in said for text in fine)
        for rank in (0, 1):
            without = f"rank {rank}: no error" in said and does_without
            assert without or (f"rank {rank}: " in said and "Error: " in said), (nth, said)
        if "rank 0: DeviceError: GPU 0: cu" in said:
            assert "CUDA_ERROR_LAUNCH_FAILED" in said


def test_the_sweep_ends_when_no_call_fails_any_more() -> None:
    sweep = [sys.executable, "tests/device/sweep.py", "--only", "allreduces", "--modes", "lost"]
    job = subprocess.run(
        [*sweep, "--first", "40", "--stride", "5000"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        cwd=Path(__file__).resolve().parents[2],
    )
    assert job.returncode == 0, job.stdout + job.stderr
    assert "allreduces, lost: 1 calls have failed" in job.stdout


@pytest.mark.parametrize("moment", ["made", "begun", "some out", "all out", "waiting"])
@pytest.mark.parametrize("how", ["dies", "leaves", "closes"])
def test_who_ends_in_a_round_parks_nobody(how: str, moment: str, tmp_path: Path) -> None:
    layout = ["-n", "2", "--nodes", "2", "--keep-going"]
    settings = {"FOLDER": str(tmp_path), **LONG, **ENVIRONMENT}
    job = run_job(layout, program("gpu_round_ends"), HOW=how, MOMENT=moment, **settings)
    assert how == "dies" or job.returncode == 0, job.stdout
    if moment != "waiting":
        assert "nobody is parked" in job.stdout, job.stdout


# An abort writes the words for which kernels wait.
@pytest.mark.parametrize("how", ["dies", "closes"])
def test_who_ends_in_a_round_leaves_no_kernel_that_waits(how: str, tmp_path: Path) -> None:
    layout = ["-n", "2", "--nodes", "2", "--keep-going"]
    environment = {"FOLDER": str(tmp_path), **LONG, **BY_KERNELS, **ENVIRONMENT}
    job = run_job(layout, program("gpu_round_ends"), HOW=how, MOMENT="some out", **environment)
    assert "nobody is parked" in job.stdout, job.stdout


POISONED = {
    "host": (["-n", "2"], "host", {"HERRING_NODE_STAGE": "host"}),
    "staged": (["-n", "3"], "staged", {}),
    "ipc": (["-n", "3"], "ipc", {"STANDIN_PEERS": "1"}),
    "two-nodes-ipc": (["-n", "4", "--nodes", "2"], "ipc", {"STANDIN_PEERS": "1"}),
    "two-nodes-staged": (["-n", "4", "--nodes", "2", "--servers", "1"], "staged", {}),
    "casts": (["-n", "2"], "ipc", {"STANDIN_PEERS": "1", "WIRE": "bfloat16"}),
    "unpinned": (["-n", "2"], "host", UNPINNED),
    "unknown-streams": (["-n", "2"], "staged", {"TELLS": "0"}),
}


@pytest.mark.parametrize("layout", POISONED)
@pytest.mark.parametrize("how", ["dies", "aborts"])
def test_nobody_takes_what_a_failed_round_left_for_averages(how: str, layout: str) -> None:
    options, wanted, environment = POISONED[layout]
    job = run_job(
        [*options, "--keep-going"],
        program("gpu_poisoned"),
        HOW=how,
        WANTED=wanted,
        **environment,
        **ENVIRONMENT,
    )
    survivors = int(options[1]) - (how == "dies")
    assert job.stdout.count("poisoned\n") == survivors, job.stdout


def test_a_call_behind_a_kernel_that_does_not_end_is_refused_on_all_ranks(tmp_path: Path) -> None:
    settings = {"FOLDER": str(tmp_path), "JITTER": "0", "HERRING_WARN_AFTER": "0.5", **ENVIRONMENT}
    said = expect_success(run_job(["-n", "3"], program("gpu_behind_kernel"), **settings))
    # Rank 0 warns before its deadline of 2 s.
    assert re.search(r"warning: .*'x': GPU 0 has not reached the call after [\d.]+ s", said), said
    assert re.search(r"rank 0 waits in allreduce 'x', which GPU 0 has not reached", said), said


@pytest.mark.parametrize("how", ["dies", "aborts", "leaves"])
def test_a_call_behind_a_kernel_that_does_not_end_hears_of_the_job(
    how: str, tmp_path: Path
) -> None:
    job = run_job(
        ["-n", "3", "--keep-going"],
        program("gpu_behind_endless_kernel"),
        HOW=how,
        JITTER="0",
        FOLDER=str(tmp_path),
        **LONG,
        **ENVIRONMENT,
    )
    assert "rank 0 has ended" in job.stdout, job.stdout
    assert "GPU 0 has not come to copies of calls that have ended" in job.stdout, job.stdout


def test_a_deadline_and_then_the_next_call(tmp_path: Path) -> None:
    settings = {"FOLDER": str(tmp_path), **ENVIRONMENT}
    expect_success(run_job(["-n", "2"], program("gpu_deadlines"), **settings))


@pytest.mark.usefixtures("runtime_folder")
@pytest.mark.parametrize("stage", ["auto", "host"])
def test_servers_die_while_gpus_are_averaged(stage: str) -> None:
    layout = ["-n", "4", "--nodes", "2", "--servers", "2"]
    environment = {"HERRING_FAILOVER": "true", "HERRING_NODE_STAGE": stage, **ENVIRONMENT}
    job = run_job(layout, program("gpu_failover", "3"), **environment)
    assert expect_success(job).count("is done after") == 4, job.stdout
