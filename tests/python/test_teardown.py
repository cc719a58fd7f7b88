"""Memory is detached before it is freed, so closing, freeing and leaving are safe at any time."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs import expect_success, program, run_job

pytestmark = pytest.mark.usefixtures("taken_apart")

LAYOUTS = {
    "direct": ["-n", "2", "--nodes", "2"],
    "one-node": ["-n", "2"],
    "node-stage": ["-n", "5", "--nodes", "2", "--servers", "1"],
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_a_plan_closed_in_a_round_that_is_ready_finishes_it(layout: list[str]) -> None:
    expect_success(run_job(layout, program("closed_when_ready")))


@pytest.mark.parametrize(
    "layout", [LAYOUTS["direct"], LAYOUTS["one-node"], ["-n", "4", "--nodes", "2"]]
)
def test_a_plan_closed_too_early_fails_the_job_everywhere(
    layout: list[str], tmp_path: Path
) -> None:
    output = expect_success(run_job(layout, program("closed_too_early"), FOLDER=str(tmp_path)))
    assert output.count("told") == int(layout[1]), output


@pytest.mark.parametrize("how", ["shutdown", "abort"])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_leaving_with_operations_in_flight(layout: list[str], how: str) -> None:
    for delay in ("0", "0.002", "0.01"):
        job = run_job(layout, program("teardown_in_flight"), grace=8, HOW=how, DELAY=delay)
        assert "SIGSEGV" not in job.stdout and "SIGABRT" not in job.stdout, job.stdout[-4000:]
        assert job.stdout.count("left") == int(layout[1]), job.stdout[-4000:]


# Each fusion buffer of these plans is one segment, which one local rank pushes for its node.
CONTRIBUTORS = """
herring.init()
rank, size = herring.rank(), herring.size()
plan = herring.PlannedReduction([(5, "float32")])
for step in range(size + 1):
    active = rank >= step
    plan.begin(active)
    plan.arena(0).view("float32")[:5] = 1
    if active:
        plan.ready(0)
    plan.wait()
    assert plan.contributors == size - step, (step, rank, plan.contributors)
"""


@pytest.mark.parametrize("servers", ["0", "2"])
def test_all_ranks_know_the_contributors_of_a_small_buffer(servers: str) -> None:
    layout = ["-n", "6", "--nodes", "2", "--servers", servers]
    expect_success(run_job(layout, CONTRIBUTORS))


def test_daemon_threads_may_wait_when_the_interpreter_ends() -> None:
    """Waits end while Python finalizes; a thread that then asked for the GIL killed the process."""
    for _ in range(3):
        expect_success(
            run_job(
                ["-n", "2"],
                program("daemon_threads"),
            )
        )


# A daemon thread leaves while the program ends; the other rank would hear of a lost peer.
LEAVING = """
import threading, time
herring.init()
herring.barrier()
begun = threading.Event()
job = herring.arrays.runtime._job

class SlowJob:
    def shutdown(self, failed):
        begun.set()
        time.sleep(0.15)
        job.shutdown(failed)
        print("has left", flush=True)

herring.arrays.runtime._job = SlowJob()
threading.Thread(target=herring.shutdown, daemon=True).start()
begun.wait()
"""


def test_the_process_ends_when_a_thread_has_left_the_job() -> None:
    assert expect_success(run_job(["-n", "2"], LEAVING)).count("has left") == 2
